// How one global tensor is held by the ranks of one axis. A tensor has a Placement per axis.
#pragma once

#include <cstdint>
#include <ostream>

namespace witan {

struct Placement {
  enum class Kind : uint8_t {
    replicate,  // every rank holds the whole
    shard,      // rank r of n holds the r-th of n equal parts along `dim`
    partial,    // every rank holds a summand of the whole's shape; the whole is their sum
  };
  // The use of a replicated value determines how its gradient is held (JAX calls this invariant and varying).
  enum class Uses : uint8_t {
    same,  // all compute the same from it, so every rank finds the whole gradient: Replicate
    own,   // each does its own part of the work with it, so each finds a summand of the gradient: Partial
  };

  Kind kind = Kind::replicate;
  int dim = 0;             // of a shard
  Uses uses = Uses::same;  // of a replicate

  static constexpr Placement replicate(Uses uses = Uses::same) { return {Kind::replicate, 0, uses}; }
  static constexpr Placement shard(int dim) { return {Kind::shard, dim, Uses::same}; }
  static constexpr Placement partial() { return {Kind::partial, 0, Uses::same}; }

  // How the gradient of a tensor so placed is held. Every summand of a Partial has the gradient of the whole.
  constexpr Placement of_gradient() const {
    if (kind == Kind::shard) return *this;
    return kind == Kind::replicate && uses == Uses::own ? partial() : replicate();
  }

  bool operator==(const Placement&) const = default;
};

// Replicate, Replicate(own uses), Shard(1), Partial
inline std::ostream& operator<<(std::ostream& out, Placement placement) {
  switch (placement.kind) {
    case Placement::Kind::replicate:
      return out << (placement.uses == Placement::Uses::own ? "Replicate(own uses)" : "Replicate");
    case Placement::Kind::shard:
      return out << "Shard(" << placement.dim << ")";
    default:
      return out << "Partial";
  }
}

}  // namespace witan
