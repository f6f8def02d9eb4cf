// What a rendering may take: a template of unknown origin must end.
#pragma once

#include <cstdint>

#include "witan/base/error.h"

namespace witan::jinja {

class Work {
 public:
  explicit Work(uint64_t most) : left_(most), most_(most) {}

  // Before so many values or pieces of eight bytes are visited or made. Throws DataError when it is too much.
  void take(uint64_t units) {
    require<DataError>(units <= left_, "the template does more work than the ", most_, " operations it may take");
    left_ -= units;
  }

 private:
  uint64_t left_, most_;
};

}  // namespace witan::jinja
