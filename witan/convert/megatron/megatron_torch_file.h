// A file of torch.save(): a zip without compression, which holds a pickle and the bytes of its tensors. Nothing in it
// is run (megatron_pickle.h). Formats: PKWARE's APPNOTE 6.3, torch/serialization.py.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "witan/checkpoint/safetensors.h"
#include "witan/convert/megatron/megatron_pickle.h"

namespace witan {

class TorchFile {
 public:
  // `bytes` must outlive this; `where` names them in messages. Throws CheckpointError for what is no such file.
  TorchFile(std::span<const std::byte> bytes, std::string where);

  const PickleValue& root() const { return pickle_->root(); }
  // A value as a tensor; nothing when it is something else. Throws CheckpointError for a tensor that does not lie in
  // the file, whose elements do not follow each other, or of a dtype that files of weights do not have.
  std::optional<PlacedTensor> tensor(const PickleValue& value, const std::string& name) const;

 private:
  void open_zip();
  void open_member(std::string_view header);
  std::string_view member(const std::string& name) const;

  std::string_view bytes_;
  std::string where_;
  std::map<std::string, std::string_view> members_;  // without the folder that all are in
  std::unique_ptr<Pickle> pickle_;
};

// "F32" of torch's FloatStorage or float32; empty for a name of no dtype.
std::string dtype_of_torch(std::string_view name);
// The sizes of a tuple, or of torch.Size. Throws CheckpointError("WHERE: …").
Shape shape_of_pickle(const PickleValue& value, const std::string& where);

}  // namespace witan
