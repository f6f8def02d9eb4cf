#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/megatron/megatron_folder.h"

namespace witan {
namespace {

std::vector<int64_t> sizes_in(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.dims(); ++dim) sizes.push_back(shape[dim]);
  return sizes;
}

class TorchDistReader {
 public:
  TorchDistReader(MegatronFiles& files, MegatronContents& contents)
      : files_(files),
        contents_(contents),
        where_(files.path_of(kMegatronDistMetadata).string()),
        metadata_(files.map(kMegatronDistMetadata).text(), where_) {}

  void read() {
    const PickleMembers all = pickled_attributes(&metadata_.root(), "Metadata", where_);
    find_places(pickled_attribute(all, "storage_data", where_));
    for (const auto& [name, value] : pickled_attribute(all, "state_dict_metadata", where_).members()) {
      if (name.starts_with("optimizer.") || !value->callee() || value->callee()->name != "TensorStorageMetadata")
        contents_.others[std::string(name)] = megatron_note_of(name);
      else
        add_tensor(name, value);
    }
  }

 private:
  void find_places(const PickleValue& storage) {
    for (size_t i = 0; i + 1 < storage.items.size(); i += 2) {
      const PickleMembers index = pickled_attributes(storage.items[i], "MetadataIndex", where_);
      const auto offset = index.find("offset");
      if (offset == index.end() || offset->second->is(PickleValue::Kind::none)) continue;  // no tensor
      places_[{pickled_attribute(index, "fqn", where_).text, sizes_in(shape_of_pickle(*offset->second, where_))}] =
          pickled_attributes(storage.items[i + 1], "_StorageInfo", where_);
    }
  }

  void add_tensor(std::string_view name, const PickleValue* value) {
    const std::string here = cat(where_, ": \"", clipped(name), '"');
    const PickleMembers tensor = pickled_attributes(value, "TensorStorageMetadata", here);
    const Shape shape = shape_of_pickle(pickled_attribute(tensor, "size", here), here);
    for (const PickleValue* chunk : pickled_attribute(tensor, "chunks", here).items)
      add_chunk(std::string(name), shape, pickled_attributes(chunk, "ChunkStorageMetadata", here), here);
  }

  void add_chunk(const std::string& name, const Shape& shape, const PickleMembers& box, const std::string& here) {
    MegatronChunk chunk{shape_of_pickle(pickled_attribute(box, "offsets", here), here),
                        shape_of_pickle(pickled_attribute(box, "sizes", here), here),
                        {}};
    const auto found = places_.find({name, sizes_in(chunk.offsets)});
    require<CheckpointError>(found != places_.end(), here, " has a piece that is in no file");
    const PickleMembers& place = found->second;
    const std::string in(pickled_attribute(place, "relative_path", here).text);
    require<CheckpointError>(
        !in.empty() && in.front() != '.' && in.find('/') == std::string::npos && in.find('\0') == std::string::npos,
        here, " is said to be in ", clipped(in), ", which is no file of this folder");
    const auto transforms = place.find("transform_descriptors");
    require<CheckpointError>(transforms == place.end() || transforms->second->is(PickleValue::Kind::none) ||
                                 transforms->second->items.empty(),
                             here, " is compressed, which Witan does not read: save it without transforms");
    const PickleValue &at = pickled_attribute(place, "offset", here),
                      &length = pickled_attribute(place, "length", here);
    const TorchFile piece(bytes_at(in, at, length, here), cat(files_.path_of(in).string(), " at byte ", at.integer));
    const auto placed = piece.tensor(piece.root(), name);
    require<CheckpointError>(placed.has_value() && placed->info.shape == chunk.sizes, here, " has a piece in ", in,
                             " that is of other sizes than ", chunk.sizes);
    chunk.bytes = placed->bytes;
    contents_.tensors.add(name, placed->info.dtype, shape, std::move(chunk));
  }

  std::span<const std::byte> bytes_at(const std::string& in, const PickleValue& at, const PickleValue& length,
                                      const std::string& here) {
    const auto bytes = files_.map(in).bytes();
    require<CheckpointError>(
        at.is(PickleValue::Kind::integer) && length.is(PickleValue::Kind::integer) && at.integer >= 0 &&
            length.integer >= 0 && static_cast<uint64_t>(at.integer) <= bytes.size() &&
            static_cast<uint64_t>(length.integer) <= bytes.size() - static_cast<uint64_t>(at.integer),
        here, " lies beyond the end of ", in, ": copy that file again");
    return bytes.subspan(static_cast<size_t>(at.integer), static_cast<size_t>(length.integer));
  }

  MegatronFiles& files_;
  MegatronContents& contents_;
  const std::string where_;
  const Pickle metadata_;
  // The place of each piece, by its tensor and its first element.
  std::map<std::pair<std::string_view, std::vector<int64_t>>, PickleMembers> places_;
};

void read_common(MegatronFiles& files, MegatronContents& contents) {
  if (!files.has(kMegatronCommon)) return;
  const PickleValue& root = files.torch(kMegatronCommon).root();
  contents.arguments = root.find("args");
  for (const auto& [key, value] : root.members())
    contents.others[cat(kMegatronCommon, ": ", key)] =
        key == "args" ? "read for the configuration" : megatron_note_of(key);
}

}  // namespace

void read_torch_dist(MegatronFiles& files, MegatronContents& contents) {
  read_common(files, contents);
  TorchDistReader(files, contents).read();
}

}  // namespace witan
