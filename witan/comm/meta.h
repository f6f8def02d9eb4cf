// A group without peers, for meta streams: it counts the bytes that the group it stands for would send, so that one
// process plans a world of thousands.
#pragma once

#include <memory>
#include <string>

#include "witan/comm/group.h"
#include "witan/comm/peer_memory.h"

namespace witan {

class MetaGroup : public Group {
 public:
  // With PeerAccess it represents a group whose ranks access each other's memory.
  MetaGroup(int size, int rank, std::string name, PeerAccess peers = PeerAccess::none);
  PeerMemory* peers() override { return peers_.get(); }

 private:
  // Reached only on a stream that computes: throws CommError, as there are no peers.
  void perform(Stream& stream, const Collective& call) override;

  std::unique_ptr<PeerMemory> peers_;
};

}  // namespace witan
