#include "witan/train/rollouts/prompts.h"

#include <algorithm>
#include <span>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

std::pair<size_t, size_t> last_answer(const std::vector<float>& loss) {
  size_t end = loss.size();
  while (end > 0 && loss[end - 1] <= 0) --end;
  size_t begin = end;
  while (begin > 0 && loss[begin - 1] > 0) --begin;
  return {begin, end};
}

namespace {

// Calls each(conversation, tokens of its prompt) for the conversations that are drawn.
template <class Each>
void for_prompts(const SampleSource& samples, const Each& each) {
  const TokenDataset& conversations = samples.dataset();
  for (int64_t document = 0; document < conversations.documents(); ++document) {
    std::vector<float> loss(static_cast<size_t>(conversations.length(document)));
    conversations.read_loss(document, 0, loss);
    const auto shown = std::span(loss).first(std::min(static_cast<size_t>(samples.sequence_length()) + 1, loss.size()));
    if (std::ranges::none_of(shown, [](float weight) { return weight > 0; })) continue;  // samples leave it out
    each(document, static_cast<int64_t>(last_answer(loss).first));
  }
}

}  // namespace

void require_prompts(const SampleSource& samples) {
  const TokenDataset& conversations = samples.dataset();
  const int64_t most = samples.sequence_length() + 1;
  int64_t beyond = 0, first = -1, tokens = 0;
  for_prompts(samples, [&](int64_t document, int64_t begin) {
    require<DataError>(begin > 0, conversations.name(), ": conversation ", document,
                       " begins with its answer, so that there is no prompt to continue: give a user's message first");
    if (begin >= most && beyond++ == 0) first = document, tokens = begin;
  });
  require<DataError>(beyond == 0, conversations.name(), ": the prompts of ", counted(beyond, "conversation"), " of ",
                     conversations.documents(), " leave no room for an answer in seq_length + 1 = ", most,
                     " tokens (that of conversation ", first, " has ", tokens,
                     "): raise seq_length, or remove these conversations");
}

std::string describe_tight_prompts(const SampleSource& samples, const RolloutConfig& config) {
  const int64_t most = samples.sequence_length() + 1;
  int64_t prompts = 0, tight = 0, longest = 0;
  for_prompts(samples, [&](int64_t, int64_t tokens) {
    ++prompts;
    longest = std::max(longest, tokens);
    if (most - tokens < config.max_completion_length) ++tight;
  });
  if (tight == 0) return "";
  return cat(
      samples.dataset().name(), ": ", tight, " of ", counted(prompts, "prompt"), tight == 1 ? " leaves" : " leave",
      " less than max_completion_length = ", config.max_completion_length,
      " tokens for an answer in seq_length + 1 = ", most, " (the longest, of ", longest, " tokens, leaves ",
      most - longest,
      "), so that answers are cut earlier: raise seq_length, lower max_completion_length, or remove long prompts");
}

}  // namespace witan
