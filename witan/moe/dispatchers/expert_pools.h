// Bounded pools: room for a multiple of the even load, where experts are divided among ranks, in place of all that the
// other ranks could send.
//
// A layer whose rows do not fit sends none of them, and says so: the step's updates are then skipped on all ranks, and
// it is run again in waves. A wave is some of each rank's experts, all rows of which are in the pool together, so that
// every expert multiplies the rows that it would have had, in their order. Each assignment has its expert in one wave,
// and a token sums its experts' rows after the last: the result is that of an unbounded pool to the bit. A wave keeps
// nothing for the backward, which computes it again.
//
// Bounded exchanges: a rank sends each other rank a part of one size, a multiple of the even load, whatever there is in
// it. The host need not know how many rows travel, so that ranks that do not reach each other's memory exchange them
// within a recorded step. A layer in which a rank has more for another sends nothing either, and the step is run again
// with rows exchanged as they come.
#pragma once

#include <functional>

#include "witan/comm/group.h"
#include "witan/moe/routing.h"
#include "witan/nn/axes.h"

namespace witan {

// The share of tokens that visit a host of so many experts, one of `hosts`, if each visits K of all experts at random.
double share_of_host(int64_t K, int64_t hosts, int64_t experts);

// tokens [T, D] -> [T, D], as the routing says. It must keep to the routing that it is given, whose tokens may be
// assignments, and use only its arguments and what outlives the tape.
using ExpertPass = std::function<Var(Tape& tape, const Var& tokens, const Routing& routing)>;

// Of all layers of a rank's model.
class ExpertPools {
 public:
  // How rows travel.
  enum class Exchange : uint8_t { in_parts, as_they_come };

  // Pools of `factor` >= 1 times the even load, or 0: of all that may come. Parts of `exchange_factor` >= 1 times the
  // even load, or 0: none, rows always travel as they come. The stream must outlive it.
  ExpertPools(Stream& stream, double factor, double exchange_factor = 0);

  // Rows of a pool where each of `ranks` ranks has T tokens of K assignments, of which an expert keeps at most
  // `capacity`: never fewer than one expert may be sent, whose rows no wave could divide.
  int64_t rows(int64_t T, int64_t K, int64_t ranks, int64_t capacity) const;
  // Rows of a part, likewise, with `experts` on each rank: no more than can come. 0: rows travel as they come.
  int64_t part_rows(int64_t T, int64_t K, int64_t ranks, int64_t experts, int64_t capacity) const;
  // The same where rows travel by hosts (host_dispatch.h): of `hosts` hosts of `ranks` ranks each, with `experts`
  // experts on each host.
  HostBounds host_bounds(int64_t T, int64_t K, int64_t hosts, int64_t ranks, int64_t experts, int64_t capacity) const;

  bool bounds_pools() const { return factor_ > 0; }
  bool bounds_exchanges() const { return exchange_factor_ > 0; }
  // Whether rows travel in parts now, and whether anything is bounded now.
  bool in_parts() const { return exchange_ == Exchange::in_parts; }
  bool bounds() const { return bounds_pools() || in_parts(); }

  // Into how many waves layers divide their experts from now on, 1: none do; and how their rows travel.
  void divide(int64_t waves, Exchange exchange = Exchange::as_they_come);
  // As at first: no waves, and parts if there may be any.
  void restore() { divide(1, Exchange::in_parts); }
  int64_t waves() const { return waves_; }

  // Before a step's first forward.
  void begin_step() const;
  // [1] float64: what the fullest pool of the step would have to hold, over what it can. Above 1: something was left
  // out.
  const Tensor& fill() const { return fill_; }

  // tokens [T, D] -> [T, D]: what `pass` computes of the routing, within these bounds and in these waves. `group` is
  // the expert axis; a collective of it. Rows travel by `hosts` where there are any.
  Var pass(Tape& tape, const Var& tokens, const Routing& routing, Group& group, const ExpertHosts& hosts,
           const ExpertPass& pass) const;

 private:
  Stream& stream_;
  double factor_, exchange_factor_;
  int64_t waves_ = 1;
  Exchange exchange_;
  Tensor fill_;
};

}  // namespace witan
