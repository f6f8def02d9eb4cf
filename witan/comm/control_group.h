// A group of all ranks on the host, with its own stream, for control messages besides training.
#pragma once

#include <memory>
#include <string>

#include "witan/base/threads/threads.h"
#include "witan/comm/host_group.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/tensor.h"

namespace witan {

class ControlGroup {
 public:
  // All ranks construct it in the same order. `name` is the group's name in errors.
  ControlGroup(World& world, int rank, const std::string& name);
  Group& group() { return *group_; }
  Stream& stream() { return stream_; }

 private:
  ThreadPool pool_;
  Stream stream_;  // its arena reserves address space; pages are committed when used
  std::unique_ptr<Group> group_;
};

}  // namespace witan
