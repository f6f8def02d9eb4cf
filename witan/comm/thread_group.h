// A group whose ranks are threads of one process: each reads its peers' tensors in place.
#pragma once

#include <memory>
#include <string>

#include "witan/comm/group.h"
#include "witan/comm/rendezvous.h"

namespace witan {

class ThreadGroup : public Group {
 public:
  ThreadGroup(std::shared_ptr<Rendezvous> meeting, int rank)
      : Group(meeting->size(), rank, meeting->axis()), meeting_(std::move(meeting)) {}

 private:
  void perform(Stream& stream, const Collective& call) override;
  void collective(Stream& stream, const Collective& call);
  void receive(Stream& stream, const Collective& call);

  // Empty, or how the calls of the ranks differ: every rank finds the same words.
  std::string disagreement() const;
  std::string counts_disagreement() const;

  void reduce(Stream& stream, const Collective& call);
  void gather(Stream& stream, const Collective& call);
  void exchange(Stream& stream, const Collective& call);
  void exchange_equal(Stream& stream, const Collective& call);

  std::shared_ptr<Rendezvous> meeting_;
};

}  // namespace witan
