// Streams beside the main one, on which ranks exchange rows while they compute.
#pragma once

#include <memory>

#include "witan/parallel/groups.h"
#include "witan/train/config/config.h"
#include "witan/train/step/step_feature.h"

namespace witan {

class SideStreams : public StepFeature {
 public:
  // The stream and the groups must outlive it.
  SideStreams(Stream& stream, const Groups& groups, const RunConfig& config);

  void offer(ModelServices& services) override;

 private:
  Stream& main_;
  const Groups& groups_;
  std::unique_ptr<Stream> tensor_;  // null: nothing computes while tokens travel over the tensor axis
  std::unique_ptr<Stream> expert_;  // null: nothing computes while tokens travel to experts
};

}  // namespace witan
