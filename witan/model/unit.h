// The units of a model: what is sharded, gathered, bucketed and recomputed together. They are declared by the model
// (Transformer::units) and numbered alike on all pipeline stages; ParameterSpec::unit is a parameter's number.
//
// Values of a unit are there while a guard holds it. A guard stands in the code where the unit is used, and puts itself
// on the tape: the backward acquires and releases the unit at the mirrored places, and so does a segment that is
// recomputed. Reading a value never communicates; reading it without a guard is an error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/nn/module.h"

namespace witan {

struct Unit {
  enum class Kind : uint8_t {
    embedding,  // of tokens and of positions; on the last pipeline stage the head's copy of a tied one
    block,
    head,  // what is behind the blocks: the last norm and, unless it is tied to the embedding, the head
  };

  Kind kind;
  int number;        // in the whole model
  std::string name;  // "embedding", "layers.3", "head"
  int chunk;         // of the layers of its pipeline stage
  std::vector<Module*> modules = {};
  std::vector<Parameter*> parameters = {};  // the modules', in the model's order
  std::vector<Buffer*> buffers = {};

  bool is_block() const { return kind == Kind::block; }
};

// All units' parameters: the model's, in its order.
std::vector<Parameter*> parameters_of(const std::vector<Unit>& units);

// Whoever has the values of units come and go (parallel/sharding/unit_store.h). A call of all ranks that share a unit.
class UnitAccess {
 public:
  enum class Use : uint8_t {
    forward,
    backward,
    read,  // outside of a pass: nothing else is gathered or given back for it
  };

  UnitAccess() = default;
  virtual ~UnitAccess() = default;
  UnitAccess(const UnitAccess&) = delete;
  UnitAccess& operator=(const UnitAccess&) = delete;

  // A pass through a chunk of layers: its forward begins, its backward begins, its backward is over.
  virtual void begin_forward() = 0;
  virtual void begin_backward() = 0;
  virtual void end_backward() = 0;
  // Units by their number; as often released as acquired.
  virtual void acquire(int unit, Use use) = 0;
  virtual void release(int unit, Use use) = 0;
};

// Stands at the top of a pass. Here and below `units` may be null: all values are always there.
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

// Stands where a unit is used: acquires it from here to the end of the scope, forward and backward alike.
class UnitGuard {
 public:
  // An embedding's backward writes gradients and reads no value: it needs the unit in the forward alone.
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
  size_t mark_ = 0;  // where the forward entered
};

// Stands where values are looked at outside of a pass.
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
