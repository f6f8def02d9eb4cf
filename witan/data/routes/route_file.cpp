#include "witan/data/routes/route_file.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <span>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/numbers/half.h"
#include "witan/base/numbers/little_endian.h"

namespace witan {
namespace {

constexpr std::string_view kRouteMagic = "WITANRTE";
constexpr uint32_t kRouteVersion = 1;
constexpr int64_t kHashBytes = 8;
// No field of the header that counts things is larger, so that products of two fit 64 bits.
constexpr uint64_t kMost = uint64_t{1} << 31;
constexpr int64_t kMostExperts = 65536;

int64_t id_bytes(int64_t experts) {
  return experts <= 256 ? 1 : 2;
}

int64_t weight_bytes(RouteFile::Weights weights) {
  return weights == RouteFile::Weights::bf16 ? 2 : 4;
}

uint64_t hash_of(std::string_view bytes) {
  Hasher hasher;
  hasher.update(bytes.data(), bytes.size());
  return hasher.low64();
}

class Writer {
 public:
  template <class T>
  void put(T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  std::string out;
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  template <class... Pieces>
  [[noreturn]] void fail(const Pieces&... why) const {
    throw CorruptionError(cat(source_, ": byte ", at_, ": ", why...));
  }
  template <class T>
  T next(const char* what) {
    if (bytes_.size() - at_ < sizeof(T)) fail("the file ends within ", what);
    const T value = load<T>(reinterpret_cast<const std::byte*>(bytes_.data() + at_));
    at_ += sizeof(T);
    return value;
  }
  // A number in [least, most].
  template <class T>
  int64_t number(const char* what, uint64_t least, uint64_t most) {
    const uint64_t value = next<T>(what);
    if (value < least || value > most) {
      at_ -= sizeof(T);
      fail(what, " is ", value, ", which is not in [", least, ", ", most, "]");
    }
    return static_cast<int64_t>(value);
  }
  const std::byte* take(int64_t bytes) {
    assert(static_cast<uint64_t>(bytes) <= bytes_.size() - at_);
    const char* begin = bytes_.data() + at_;
    at_ += static_cast<size_t>(bytes);
    return reinterpret_cast<const std::byte*>(begin);
  }
  int64_t left() const { return static_cast<int64_t>(bytes_.size() - at_); }
  int64_t at() const { return static_cast<int64_t>(at_); }

 private:
  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
};

struct Sizes {
  int64_t tokens = 0, layers = 0;
};

void read_ranges(Reader& in, RouteFile& file, int64_t ranges) {
  int64_t end = 0;
  for (int64_t i = 0; i < ranges; ++i) {
    const auto limit = static_cast<uint64_t>(file.sequence_length);
    PositionRange range;
    range.first = in.number<uint64_t>("the first position of a range", static_cast<uint64_t>(end), limit);
    range.count =
        in.number<uint64_t>("the positions of a range", 1, limit - std::min(limit, static_cast<uint64_t>(range.first)));
    end = range.first + range.count;
    file.positions.push_back(range);
  }
}

void read_layers(Reader& in, RouteFile& file, int64_t layers) {
  for (int64_t i = 0; i < layers; ++i) {
    const uint64_t least = i == 0 ? 0 : static_cast<uint64_t>(file.layers.back().layer) + 1;
    file.layers.emplace_back().layer = in.number<uint32_t>("the number of a layer", least, kMost);
  }
}

// Everything before the tokens.
Sizes read_header(Reader& in, RouteFile& file) {
  for (const char letter : kRouteMagic)
    if (in.next<char>("the magic") != letter) in.fail("no file of routes: it does not begin with ", kRouteMagic);
  in.number<uint32_t>("the version", kRouteVersion, kRouteVersion);
  file.kind = static_cast<RouteFile::Kind>(in.number<uint8_t>("the kind", 0, 2));
  const int64_t width = in.number<uint8_t>("the bytes of an id", 1, 2);
  file.stored_as = static_cast<RouteFile::Weights>(in.number<uint8_t>("the dtype of weights", 0, 1));
  in.number<uint8_t>("the reserved byte", 0, 0);
  file.step = in.number<uint64_t>("the step", 1, std::numeric_limits<int64_t>::max());
  file.experts = in.number<uint32_t>("the number of experts", 1, kMostExperts);
  if (width != id_bytes(file.experts)) in.fail("ids of ", file.experts, " experts have no ", width, " bytes");
  file.topk = in.number<uint32_t>("top-k", 1, static_cast<uint64_t>(file.experts));
  file.all_sequences = in.number<uint64_t>("the step's number of sequences", 1, kMost);
  file.sequence_length = in.number<uint64_t>("the sequence length", 1, kMost);
  file.first_sequence = in.number<uint64_t>("the first sequence", 0, static_cast<uint64_t>(file.all_sequences - 1));
  file.sequences = in.number<uint64_t>("the number of sequences", 1,
                                       static_cast<uint64_t>(file.all_sequences - file.first_sequence));
  const int64_t ranges = in.number<uint32_t>("the number of ranges", 1, static_cast<uint64_t>(file.sequence_length));
  const int64_t layers = in.number<uint32_t>("the number of layers", 0, kMost);
  if (ranges * 16 + layers * 4 > in.left())
    in.fail("the file ends within its ", ranges, " ranges and ", layers, " layers");
  read_ranges(in, file, ranges);
  read_layers(in, file, layers);
  return {file.sequences * file.positions_each(), layers};
}

// Checks that the rest has the size that the header implies.
void check_size(const Reader& in, const RouteFile& file, const Sizes& sizes) {
  const auto each = static_cast<uint64_t>(file.topk * (id_bytes(file.experts) + weight_bytes(file.stored_as)));
  uint64_t of_token = 4, all = 0;
  const bool overflow = __builtin_mul_overflow(each, static_cast<uint64_t>(sizes.layers), &all) ||
                        __builtin_add_overflow(all, of_token, &of_token) ||
                        __builtin_mul_overflow(of_token, static_cast<uint64_t>(sizes.tokens), &all) ||
                        __builtin_add_overflow(all, static_cast<uint64_t>(kHashBytes), &all);
  if (overflow || all != static_cast<uint64_t>(in.left()))
    in.fail("the header asks for ", sizes.tokens, " tokens in ", sizes.layers, " layers, but ", in.left(),
            " bytes follow, which do not hold them");
}

// K experts of one token, each another one.
void check_token(const Reader& in, const RouteFile& file, const RouteFile::Layer& layer, std::span<const int32_t> ids) {
  for (size_t k = 0; k < ids.size(); ++k) {
    if (ids[k] >= file.experts)
      in.fail("layer ", layer.layer, " has a token with expert ", ids[k], " of ", file.experts);
    if (std::find(ids.begin(), ids.begin() + static_cast<int64_t>(k), ids[k]) != ids.begin() + static_cast<int64_t>(k))
      in.fail("layer ", layer.layer, " has a token with expert ", ids[k], " twice");
  }
}

void read_layer(Reader& in, const RouteFile& file, RouteFile::Layer& layer, int64_t tokens) {
  const int64_t count = tokens * file.topk, width = id_bytes(file.experts);
  layer.ids.resize(static_cast<size_t>(count));
  const std::byte* ids = in.take(count * width);
  for (int64_t i = 0; i < count; ++i)
    layer.ids[static_cast<size_t>(i)] = width == 1 ? load<uint8_t>(ids + i) : load<uint16_t>(ids + i * 2);
  for (int64_t t = 0; t < tokens; ++t)
    check_token(in, file, layer,
                std::span(layer.ids).subspan(static_cast<size_t>(t * file.topk), static_cast<size_t>(file.topk)));
  layer.weights.resize(static_cast<size_t>(count));
  const std::byte* weights = in.take(count * weight_bytes(file.stored_as));
  for (int64_t i = 0; i < count; ++i) {
    float& weight = layer.weights[static_cast<size_t>(i)];
    if (file.stored_as == RouteFile::Weights::f32) {
      weight = load<float>(weights + i * 4);
    } else {
      bf16 narrow;
      narrow.bits = load<uint16_t>(weights + i * 2);
      weight = narrow;
    }
  }
}

void write_layer(Writer& to, const RouteFile& file, const RouteFile::Layer& layer) {
  const int64_t count = file.sequences * file.positions_each() * file.topk;
  assert(static_cast<int64_t>(layer.ids.size()) == count && static_cast<int64_t>(layer.weights.size()) == count);
  for (const int32_t id : layer.ids) {
    if (id_bytes(file.experts) == 1)
      to.put(static_cast<uint8_t>(id));
    else
      to.put(static_cast<uint16_t>(id));
  }
  for (const float weight : layer.weights) {
    if (file.stored_as == RouteFile::Weights::bf16)
      to.put(bf16(weight).bits);
    else
      to.put(weight);
  }
}

}  // namespace

int64_t RouteFile::positions_each() const {
  int64_t count = 0;
  for (const PositionRange& range : positions) count += range.count;
  return count;
}

std::string encode_routes(const RouteFile& file) {
  Writer to;
  to.out = kRouteMagic;
  to.put(kRouteVersion);
  to.put(static_cast<uint8_t>(file.kind));
  to.put(static_cast<uint8_t>(id_bytes(file.experts)));
  to.put(static_cast<uint8_t>(file.stored_as));
  to.put(uint8_t{0});
  to.put(static_cast<uint64_t>(file.step));
  to.put(static_cast<uint32_t>(file.experts));
  to.put(static_cast<uint32_t>(file.topk));
  for (const int64_t count : {file.all_sequences, file.sequence_length, file.first_sequence, file.sequences})
    to.put(static_cast<uint64_t>(count));
  to.put(static_cast<uint32_t>(file.positions.size()));
  to.put(static_cast<uint32_t>(file.layers.size()));
  for (const PositionRange& range : file.positions) {
    to.put(static_cast<uint64_t>(range.first));
    to.put(static_cast<uint64_t>(range.count));
  }
  for (const RouteFile::Layer& layer : file.layers) to.put(static_cast<uint32_t>(layer.layer));
  for (const int32_t token : file.tokens) to.put(token);
  for (const RouteFile::Layer& layer : file.layers) write_layer(to, file, layer);
  to.put(hash_of(to.out));
  return std::move(to.out);
}

RouteFile parse_routes(std::string_view bytes, const std::string& source) {
  RouteFile file;
  Reader in(bytes, source);
  const Sizes sizes = read_header(in, file);
  check_size(in, file, sizes);
  const uint64_t stored = load<uint64_t>(reinterpret_cast<const std::byte*>(bytes.data() + bytes.size() - kHashBytes));
  if (stored != hash_of(bytes.substr(0, bytes.size() - kHashBytes)))
    in.fail("the checksum at the end does not match: the file is damaged");
  const std::byte* tokens = in.take(sizes.tokens * 4);
  for (int64_t i = 0; i < sizes.tokens; ++i) file.tokens.push_back(load<int32_t>(tokens + i * 4));
  for (RouteFile::Layer& layer : file.layers) read_layer(in, file, layer, sizes.tokens);
  return file;
}

RouteFile read_routes(const fs::path& path) {
  const MappedFile file(path);
  return parse_routes(file.text(), path.string());
}

}  // namespace witan
