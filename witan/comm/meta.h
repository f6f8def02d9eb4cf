// A group without peers, for meta streams: it counts the bytes that the group it stands for would send, so that one
// process plans a world of thousands.
#pragma once

#include <string>

#include "witan/comm/group.h"

namespace witan {

class MetaGroup : public Group {
 public:
  MetaGroup(int size, int rank, std::string name) : Group(size, rank, std::move(name)) {}

 private:
  // Reached only on a stream that computes: throws CommError, as there is nobody to talk to.
  void perform(Stream& stream, const Collective& call) override;
};

}  // namespace witan
