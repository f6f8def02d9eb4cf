// Weights in another program's files under Witan's names, with all that an import keeps account of.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "witan/convert/weight_source.h"

namespace witan {

class ForeignWeights : public WeightSource {
 public:
  // A tensor as it lies in the files.
  struct Source {
    std::string name, dtype;
    Shape shape;
    std::span<const std::byte> bytes;
    std::vector<std::span<const std::byte>> more = {};  // of one that lies in several pieces
  };

  virtual std::string format() const = 0;  // "hf", "gguf"
  virtual const Architecture& architecture() const = 0;
  virtual int64_t positions() const = 0;               // that the model is meant for
  virtual const NameStyle& style() const = 0;          // of a Hugging Face folder; of other formats what one would have
  virtual std::vector<Source> sources() const = 0;     // all of them, by name
  virtual const std::vector<Link>& links() const = 0;  // in the order of the model
  virtual const std::vector<ModelTensor>& tensors() const = 0;          // likewise
  virtual const std::map<std::string, std::string>& notes() const = 0;  // of sources that no link needs: why

  // Elements [first, first + count) of a linked tensor as `type`.
  virtual void gather_to(const Link& link, int64_t first, int64_t count, Element type, std::byte* out) = 0;
  // Gives back the memory of what the link was made of.
  virtual void release(const Link& link) = 0;
};

}  // namespace witan
