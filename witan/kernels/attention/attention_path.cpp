#include "witan/kernels/attention/attention_path.h"

#include <array>

#include "witan/base/error.h"

namespace witan::kernels {
namespace {

constexpr int64_t kLeastSequence = 64;  // shorter sequences are not worth a cuDNN plan
// The most bytes for the score gradients, which a deterministic backward keeps for all pairs of a group's heads.
constexpr int64_t kMostForPairs = int64_t{2} << 30;

struct SlowAttention {
  OwnAttention own;
  const char *forward, *backward;
  std::string_view why;
};
constexpr std::array<SlowAttention, 5> kSlow = {
    {{OwnAttention::dropout, "attention_forward:dropout", "attention_backward:dropout", "attention_dropout is not 0"},
     {OwnAttention::documents, "attention_forward:documents", "attention_backward:documents",
      "documents in a row do not see each other (reset_attention_mask)"},
     {OwnAttention::head_size, "attention_forward:head_size", "attention_backward:head_size",
      "cuDNN takes heads of a multiple of 8, up to 256"},
     {OwnAttention::block, "attention_forward:block", "attention_backward:block",
      "context parallelism divides a sliding window into blocks that cuDNN does not take"},
     {OwnAttention::workspace, "attention_forward:workspace", "attention_backward:workspace",
      "a backward that repeats to the bit (--deterministic) would need more than 2 GiB of workspace at this length"}}};

// Whether the positions of `tokens` tokens have no gap.
bool consecutive(const PositionRuns& positions, int64_t tokens) {
  return positions.at(tokens - 1) - positions.at(0) == tokens - 1;
}

bool head_sizes_apply(int64_t hd, int64_t hd_v) {
  constexpr int64_t kMost = 256;
  return hd % 8 == 0 && hd_v % 8 == 0 && std::max(hd, hd_v) <= kMost;
}

constexpr int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

// The workspace of cuDNN's backward for one group of one row: dq in float32 or, if the backward must be deterministic,
// the score gradients; delta; and dk and dv of each query head, which are then summed over the group.
int64_t backward_workspace(const AttentionInputs& in, const AttentionPairs& pairs) {
  constexpr int64_t kFloat = 4, kTile = 128, kAligned = int64_t{1} << 20;
  const int64_t heads = in.q.size(2) / in.k.size(2), hd = in.q.size(3), hd_v = in.v.size(3);
  const int64_t queries = round_up(in.q.size(1) - pairs.first_query, kTile), keys = round_up(pairs.keys, kTile);
  const int64_t sums = in.hints.repeatable ? queries * keys * size_of(in.q.dtype()) : queries * hd * kFloat;
  const int64_t of_keys = heads > 1 ? keys * (hd + hd_v) * size_of(in.q.dtype()) : 0;
  const int64_t lse = pairs.first_query > 0 ? queries * kFloat : 0;
  return round_up(heads * (sums + queries * kFloat + of_keys + lse) + 1, kAligned);
}

OwnAttention own_by_shape(const AttentionInputs& in, bool backward) {
  if (size_of(in.q.dtype()) != 2 || (in.hints.batch_invariant && !backward)) return OwnAttention::suited;
  if (in.q.elements() == 0 || in.k.elements() == 0 || in.v.elements() == 0) return OwnAttention::suited;
  if (in.dropout.on()) return OwnAttention::dropout;
  if (!head_sizes_apply(in.q.size(3), in.v.size(3))) return OwnAttention::head_size;
  if (!in.hints.one_sequence_per_row && in.sequence_ids.defined()) return OwnAttention::documents;
  const auto pairs = library_pairs(in);
  if (!pairs) return in.q.size(1) < kLeastSequence ? OwnAttention::suited : OwnAttention::block;
  const bool is_short = in.q.size(1) - pairs->first_query < kLeastSequence || pairs->keys < kLeastSequence;
  return is_short ? OwnAttention::suited : OwnAttention::no;
}

}  // namespace

std::optional<AttentionPairs> library_pairs(const AttentionInputs& in) {
  const auto& [queries, keys, ids, length] = in.block;
  const int64_t Sq = in.q.size(1), Sk = in.k.size(1);
  // A window that hides no pair of the block is ignored. Windows by position and by index are the same if positions
  // have no gap.
  const bool windowed = in.window > 0 && queries.at(Sq - 1) - keys.at(0) >= in.window;
  if (windowed && !(queries == keys && Sq == Sk && consecutive(keys, Sk))) return {};
  // If queries and keys have the same increasing positions, causal by position equals causal by index.
  if (queries == keys && Sq == Sk) return AttentionPairs{true, 0, Sk, windowed ? in.window : 0};
  const auto seen = [&queries = queries, &keys = keys, Sk](int64_t query) {
    return keys.before(queries.at(query) + 1, Sk);
  };
  // The queries of a run see more and more keys, so all see the same keys if the first and the last do.
  const int64_t split = std::clamp<int64_t>(queries.split, 0, Sq);
  const int64_t first = split > 0 ? seen(0) : seen(split), second = split < Sq ? seen(split) : first;
  if ((split > 0 && seen(split - 1) != first) || (split < Sq && seen(Sq - 1) != second)) return {};
  if (first != 0 && first != second) return {};
  return AttentionPairs{false, first == second ? 0 : split, second};
}

AttentionPath attention_path(const AttentionInputs& in, bool backward) {
  AttentionPath path{own_by_shape(in, backward)};
  if (path.own != OwnAttention::no || !backward) return path;
  const int64_t bytes = backward_workspace(in, *library_pairs(in));
  if (bytes <= kLibraryScratch) return path;
  if (in.hints.repeatable && bytes > kMostForPairs) return {OwnAttention::workspace};
  return {OwnAttention::no, bytes};
}

const char* counted_name(OwnAttention own, bool backward) {
  for (const SlowAttention& slow : kSlow)
    if (slow.own == own) return backward ? slow.backward : slow.forward;
  return backward ? "attention_backward" : "attention_forward";
}

std::string slow_path(std::string_view counted) {
  for (const SlowAttention& slow : kSlow)
    for (const std::string_view name : {slow.forward, slow.backward})
      if (name == counted)
        return cat(name.substr(0, name.find(':')),
                   " runs on Witan's own kernels, several times slower than cuDNN's: ", slow.why);
  return "";
}

}  // namespace witan::kernels
