// Bounded receive buffers ("pools" in the configuration) and send capacities, for experts that are divided among ranks.
//
// A bounded buffer has room for a multiple of the balanced load instead of all rows that other ranks could send. A
// layer whose rows do not fit sends none of them and reports it: the step's updates are then skipped on all ranks, and
// the step is rerun in several passes. A pass covers some of each rank's experts, all of whose rows are in the buffer
// together, so that every expert multiplies the same rows in the same order as without a bound. Each assignment belongs
// to one pass, and a token sums its experts' rows after the last: the result has the same bits as with an unbounded
// buffer. A pass keeps nothing for the backward, which recomputes it.
//
// Bounded exchanges have a fixed send capacity: a rank sends each other rank a part of one size, a multiple of the
// balanced load, however many rows of it are used. The host need not know how many rows travel, so that ranks that do
// not reach each other's memory exchange them within a recorded step. A layer in which a rank has more rows for another
// sends nothing either, and the step is rerun with exact counts.
#pragma once

#include <functional>

#include "witan/comm/group.h"
#include "witan/moe/routing.h"
#include "witan/nn/axes.h"

namespace witan {

// The share of tokens that visit a given host, one of `hosts` with `experts` experts each, if every token visits K of
// all experts at random.
double share_of_host(int64_t K, int64_t hosts, int64_t experts);

// tokens [T, D] -> [T, D] by the given routing, whose tokens may be single assignments. It may use only its arguments
// and what outlives the tape.
using ExpertPass = std::function<Var(Tape& tape, const Var& tokens, const Routing& routing)>;

// The bounds of all layers of a rank's model.
class ReceiveBuffers {
 public:
  // How rows travel: in parts of fixed size, or with exact counts.
  enum class Exchange : uint8_t { in_parts, with_counts };

  // Buffers have room for `factor` >= 1 times the balanced load, or with 0 for the worst case. Parts have room for
  // `exchange_factor` >= 1 times the balanced load; with 0 rows always travel with exact counts. The stream must
  // outlive this object.
  ReceiveBuffers(Stream& stream, double factor, double exchange_factor = 0);

  // Rows of a buffer if each of `ranks` ranks has T tokens with K assignments, of which an expert keeps at most
  // `capacity`: never fewer than one expert may receive, since passes do not divide an expert's rows.
  int64_t rows(int64_t T, int64_t K, int64_t ranks, int64_t capacity) const;
  // Rows of a part with `experts` experts on each rank, at most as many as a rank can send. 0: rows travel with exact
  // counts.
  int64_t part_rows(int64_t T, int64_t K, int64_t ranks, int64_t experts, int64_t capacity) const;
  // The bounds if rows travel by hosts (host_dispatch.h): `hosts` hosts of `ranks` ranks each, with `experts` experts
  // on each host.
  HostBounds host_bounds(int64_t T, int64_t K, int64_t hosts, int64_t ranks, int64_t experts, int64_t capacity) const;

  bool bounds_buffers() const { return factor_ > 0; }
  bool bounds_exchanges() const { return exchange_factor_ > 0; }
  // Whether rows travel in parts now, and whether anything is bounded now.
  bool in_parts() const { return exchange_ == Exchange::in_parts; }
  bool bounds() const { return bounds_buffers() || in_parts(); }

  // Sets the number of passes into which layers divide their experts, and how rows travel.
  void divide(int64_t passes, Exchange exchange = Exchange::with_counts);
  // Back to a single pass, and to parts if exchanges are bounded.
  void restore() { divide(1, Exchange::in_parts); }
  int64_t passes() const { return passes_; }

  // Before a step's first forward.
  void begin_step() const;
  // [1] float64: the largest load of the step's buffers and parts, relative to their room. Above 1: rows were left out.
  const Tensor& fill() const { return fill_; }

  // tokens [T, D] -> [T, D]: runs `pass` within these bounds, as often as divide() says. `group` is the expert axis; a
  // collective of it. Rows travel by `hosts` if there are any.
  Var pass(Tape& tape, const Var& tokens, const Routing& routing, Group& group, const ExpertHosts& hosts,
           const ExpertPass& pass) const;

 private:
  Stream& stream_;
  double factor_, exchange_factor_;
  int64_t passes_ = 1;
  Exchange exchange_;
  Tensor fill_;
};

}  // namespace witan
