// The units of a model: parameters that are sharded, gathered, bucketed and recomputed together. The model declares
// them (Transformer::units), numbered alike on all pipeline stages; ParameterSpec::unit is the number of a parameter's
// unit.
//
// A unit's values are available while a guard holds it. A guard stands in the code that uses the unit, and records
// itself on the tape: the backward, and a segment that is recomputed, acquire and release the unit at the mirrored
// places. Reading a value never communicates; reading it without a guard is an error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/nn/module.h"

namespace witan {

struct Unit {
  enum class Kind : uint8_t {
    embedding,  // of tokens and of positions; on the last pipeline stage the head's copy of a tied embedding
    block,
    head,  // the last norm and, unless it is tied to the embedding, the head
  };

  Kind kind;
  int number;        // in the whole model
  std::string name;  // "embedding", "layers.3", "head"
  int chunk;         // the chunk of its pipeline stage's layers
  std::vector<Module*> modules = {};
  std::vector<Parameter*> parameters = {};  // the modules', in the model's order
  std::vector<Buffer*> buffers = {};

  bool is_block() const { return kind == Kind::block; }
};

// The parameters of all units, in the model's order.
std::vector<Parameter*> parameters_of(const std::vector<Unit>& units);

// Gathers and releases the values of units (parallel/sharding/unit_store.h). All ranks that share a unit make the same
// calls.
class UnitAccess {
 public:
  enum class Use : uint8_t {
    forward,
    backward,
    read,  // outside of a pass: no other unit is prefetched or released for it
  };

  UnitAccess() = default;
  virtual ~UnitAccess() = default;
  UnitAccess(const UnitAccess&) = delete;
  UnitAccess& operator=(const UnitAccess&) = delete;

  // Mark the passes through a chunk of layers: its forward begins, its backward begins, its backward ends.
  virtual void begin_forward() = 0;
  virtual void begin_backward() = 0;
  virtual void end_backward() = 0;
  // By the unit's number. Each acquire() is followed by one release().
  virtual void acquire(int unit, Use use) = 0;
  virtual void release(int unit, Use use) = 0;
};

// Stands at the top of a pass. Here and below `units` may be null: then all values are always available.
class PassGuard {
 public:
  PassGuard(Tape& tape, UnitAccess* units);
  ~PassGuard();
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;

 private:
  Tape& tape_;
  UnitAccess* units_;
};

// Acquires a unit from here to the end of the scope, and likewise in the backward.
class UnitGuard {
 public:
  // An embedding's backward writes gradients but reads no value: it needs the unit in the forward only.
  enum class Backward : bool { reads_nothing, reads_values };

  UnitGuard(Tape& tape, UnitAccess* units, int unit, Backward backward = Backward::reads_values);
  ~UnitGuard();
  UnitGuard(const UnitGuard&) = delete;
  UnitGuard& operator=(const UnitGuard&) = delete;

 private:
  bool on_tape() const { return units_ != nullptr && backward_ == Backward::reads_values; }

  Tape& tape_;
  UnitAccess* units_;
  int unit_;
  Backward backward_;
  size_t mark_ = 0;  // the tape's mark at which the forward acquired the unit
};

// Makes a unit's values available outside of a pass.
class UnitReading {
 public:
  UnitReading(UnitAccess* units, int unit);
  ~UnitReading();
  UnitReading(const UnitReading&) = delete;
  UnitReading& operator=(const UnitReading&) = delete;

 private:
  UnitAccess* units_;
  int unit_;
};

}  // namespace witan
