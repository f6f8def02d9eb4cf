// Whole sequences for mixers that pass a state from token to token, on ranks that divide sequences:
// an all-to-all gives each rank some heads of all tokens, which it computes as one rank does, and another one sends the
// results back (Jacobs et al., "DeepSpeed Ulysses", 2023, arXiv:2309.14509). cp_comm_type concerns attention alone.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/autograd/tape.h"
#include "witan/comm/context.h"
#include "witan/nn/axes.h"
#include "witan/nn/mixer/token_mixer.h"

namespace witan {

// Heads of a kind of mixer, and the groups of them that share inputs, with the keys that set their numbers.
struct ExchangedHeads {
  const char* layers;                      // for errors: "Gated DeltaNet"
  std::pair<const char*, int64_t> heads;   // of all ranks
  std::pair<const char*, int64_t> groups;  // which divide the heads
};

// Whether each of these context-parallel ranks can have an equal share of the heads that tensor-parallel ranks leave
// it, and of their groups or of one of them.
bool ranks_divide(const ExchangedHeads& of, int64_t tensor, int64_t context);
// MixerKind::context_refusal() of these heads.
std::string refusal_of_heads(const ExchangedHeads& of, int64_t tensor, int64_t context);

// Each function returns its argument where sequences are whole. n: the ranks that divide sequences; a section of P
// heads leaves a rank Q = P / n of them, or 1 that it shares. The exchanges are collectives, forward and backward.
class WholeSequences {
 public:
  explicit WholeSequences(const ContextAxis& context) : group_(context.divides() ? context.group : nullptr) {}

  int64_t own(int64_t heads) const { return group_ == nullptr ? heads : HeadSection{heads, 1}.own_heads(ranks()); }
  // The ids [B, S] of all tokens; undefined if each row is one document.
  Tensor sequence_ids(Stream& stream, const Positions& where) const;

  // x [B, S / n, sum of P w] of this rank's tokens -> [B, S, sum of Q w]
  Var gather(Tape& tape, const Var& x, const HeadSections& sections) const;
  // Up to three tensors with a number for each head in one exchange: [B, S / n, P] -> [B, S, Q]
  std::vector<Var> gather(Tape& tape, const std::vector<Var>& numbers) const;
  // y [B, S, Q w] -> [B, S / n, P w]
  Var scatter(Tape& tape, const Var& y, int64_t own_heads) const;
  // The rows of a parameter [P w, ..] that belong to this rank's heads.
  Var own_rows(Tape& tape, Parameter& parameter, int64_t heads) const;

 private:
  int64_t ranks() const { return group_->size(); }

  Group* group_;  // null: sequences are whole
};

}  // namespace witan
