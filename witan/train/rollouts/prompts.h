// The prompts of rollouts: the conversations of a run up to their last answer, which is the reference of rewards.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/data/samples/sample_source.h"
#include "witan/train/config/config.h"

namespace witan {

// The places [begin, end) of a conversation's last answer, given the weight of each token in the loss; both 0 if it has
// none.
std::pair<size_t, size_t> last_answer(const std::vector<float>& loss);

// Checks that all conversations have a prompt that fits: throws DataError if one begins with its only answer, or if
// some are drawn, since they have an earlier answer, but their last answer begins beyond a sample's sequence_length + 1
// tokens.
void require_prompts(const SampleSource& samples);

// A warning if prompts that are drawn leave fewer than max_completion_length tokens for an answer in a sample's
// sequence_length + 1 tokens; else empty.
std::string describe_tight_prompts(const SampleSource& samples, const RolloutConfig& config);

}  // namespace witan
