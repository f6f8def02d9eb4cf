// Chooses the kernels of attention on a GPU, as far as shapes and hints decide: cuDNN's, or slower ones of our own.
// Plans ask too, so that they know a step's speed, and to the byte the workspace that cuDNN takes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "witan/kernels/attention/attention.h"

namespace witan::kernels {

// The pairs of a block in cuDNN's terms: a square, causal by index, or a rectangle.
struct AttentionPairs {
  bool causal = false;
  int64_t first_query = 0, keys = 0;  // queries from that one on, and the first so many keys
  int64_t window = 0;                 // by index, of a square
};
std::optional<AttentionPairs> library_pairs(const AttentionInputs& in);

// The part of Stream::scratch that cuDNN may use.
inline constexpr int64_t kLibraryScratch = Stream::kScratchBytes - (int64_t{1} << 20);

// The reason why Witan's own kernels compute a call. Only for `suited` calls they are no slower than cuDNN.
enum class OwnAttention : uint8_t { no, suited, dropout, documents, head_size, block, workspace };

struct AttentionPath {
  OwnAttention own = OwnAttention::no;
  int64_t workspace = 0;  // bytes for cuDNN, where its smallest part needs more than Stream::scratch has; else 0
};
AttentionPath attention_path(const AttentionInputs& in, bool backward);

// The name under which a call is counted: that of the kernel, and ":dropout" and so on if it takes a slow path.
const char* counted_name(OwnAttention own, bool backward);
// A sentence on why calls counted under that name are slow; empty if they are not.
std::string slow_path(std::string_view counted);

}  // namespace witan::kernels
