// The weights in another program's files, by Witan's names. Every tensor of the files is either linked to Witan's or
// has a note that says why it is not needed.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/convert/weight_source.h"

namespace witan {

// Whether to import layers of multi-token prediction, which follow the model's own.
enum class MtpLayers : bool { take, leave_out };

class ForeignWeights : public WeightSource {
 public:
  // A tensor in the files.
  struct Source {
    std::string name, dtype;
    Shape shape;
    std::span<const std::byte> bytes;
    std::vector<std::span<const std::byte>> more = {};  // if it is stored in several pieces
  };

  std::map<std::string, Shape> weights() const override;
  void read(const std::string& name, int64_t first, int64_t count, double* out) override;

  virtual std::string format() const = 0;  // "hf", "gguf", "megatron"
  virtual const Architecture& architecture() const = 0;
  virtual int64_t positions() const = 0;            // the length of context that the model is meant for
  virtual std::vector<Source> sources() const = 0;  // sorted by name

  const NameStyle& style() const { return style_; }                           // of a folder, or the default of one
  const std::vector<Link>& links() const { return links_; }                   // in the order of the model
  const std::vector<ModelTensor>& tensors() const { return tensors_; }        // in the order of the model
  const std::map<std::string, std::string>& notes() const { return notes_; }  // why no link needs a source, by its name

  // Elements [first, first + count) of a linked tensor as `type`.
  void gather_to(const Link& link, int64_t first, int64_t count, Element type, std::byte* out);
  // Releases the memory of the link's sources.
  virtual void release(const Link& link) = 0;

 protected:
  // Returns a source, dequantised if need be, which stays valid until release() of its link.
  virtual HeldTensor hold(const std::string& source) = 0;

  NameStyle& change_style() { return style_; }
  void list_tensors(const ModelConfig& model) { tensors_ = tensors_of(model); }
  void set_links(std::vector<Link> links);
  void note(const std::string& source, std::string why) { notes_[source] = std::move(why); }

  // Sets the model's dtype to the narrowest one that can represent all linked sources, by `held` for each of them.
  void choose_dtype(ModelConfig& model, const std::function<bool(Element by, const std::string& source)>& held);
  // Reads the tables of experts, if there are any. Throws CheckpointError naming a token whose expert does not exist.
  void check_tables_of_experts(int64_t experts);

 private:
  bool all_held(const std::function<bool(Element by, const std::string& source)>& held) const;

  NameStyle style_;
  std::vector<ModelTensor> tensors_;
  std::vector<Link> links_;
  std::map<std::string, size_t> index_;  // of links_
  std::map<std::string, std::string> notes_;
};

}  // namespace witan
