#include "witan/train/rollouts/rollout.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/base64.h"
#include "witan/train/step/sequence_objectives.h"

namespace witan {
namespace {

// Numbers of experts, as base64 of two bytes each, the lower one first.
std::string packed_routes(const std::vector<int32_t>& routes) {
  std::string bytes;
  for (const int32_t expert : routes) {
    bytes.push_back(static_cast<char>(expert & 255));
    bytes.push_back(static_cast<char>(expert >> 8));
  }
  return to_base64(bytes);
}

std::vector<int32_t> unpacked_routes(const std::string& text, std::string_view where) {
  const std::optional<std::string> bytes = from_base64(text);
  require<DataError>(bytes && bytes->size() % 2 == 0, where, ": \"routes\" is no base64 of pairs of bytes");
  std::vector<int32_t> routes;
  for (size_t i = 0; i < bytes->size(); i += 2)
    routes.push_back(static_cast<unsigned char>((*bytes)[i]) | static_cast<unsigned char>((*bytes)[i + 1]) << 8);
  return routes;
}

constexpr std::array<std::string_view, 3> kNext = {"answer", "reply", "nothing"};

// What rollouts of several turns have beside the others.
void add_turns(Json& line, const Rollout& rollout) {
  line["turns"] = rollout.text.turn;
  line["messages"] = parse_json(rollout.text.messages, "messages of a rollout");
  line["completion_mask"] = rollout.mask;
  line["cut_by_turns"] = rollout.cut_by_turns;
  line["rewritten"] = rollout.rewritten;
  if (rollout.next == Rollout::Next::nothing) return;
  line["next"] = kNext[static_cast<size_t>(rollout.next)];
}

void read_turns(const Json& line, Rollout& rollout) {
  line.at("turns").get_to(rollout.text.turn);
  rollout.text.messages = line.at("messages").dump(-1, ' ', false, Json::error_handler_t::replace);
  line.at("completion_mask").get_to(rollout.mask);
  line.at("cut_by_turns").get_to(rollout.cut_by_turns);
  line.at("rewritten").get_to(rollout.rewritten);
  const std::string next = line.value("next", std::string("nothing"));
  const auto found = std::ranges::find(kNext, next);
  require<DataError>(found != kNext.end(), "\"next\" is ", clipped(next));
  rollout.next = static_cast<Rollout::Next>(found - kNext.begin());
}

}  // namespace

int64_t Rollout::sampled_tokens() const {
  return mask.empty() ? std::ssize(completion) : std::ranges::count(mask, 1);
}

bool Rollout::is_trained(const RunConfig& config) const {
  return !skipped && (ended || !config.rollout.mask_truncated_completions);
}

int64_t Rollout::room(const RunConfig& config) const {
  const int64_t written = std::ssize(completion);
  return std::min(config.rollout.max_completion_length - written,
                  config.data.seq_length + 1 - std::ssize(prompt) - written);
}

std::string Rollout::to_line() const {
  Json line = {{"row", row},
               {"sampled_at", sampled_at},
               {"prompt", text.prompt},
               {"completion", text.completion},
               {"answer", text.answer},
               {"prompt_tokens", prompt},
               {"completion_tokens", completion},
               {"logprobs", logprobs},
               {"ended", ended},
               {"reward", reward},
               {"advantage", advantage},
               {"skipped", skipped},
               {"rewards", rewards},
               {"replaced", replaced}};
  if (discarded) line["discarded"] = true;
  if (!routes.empty()) line["routes"] = packed_routes(routes);
  if (text.turn > 0) add_turns(line, *this);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Rollout Rollout::of_line(std::string_view line, std::string_view where) try {
  const Json read = parse_json(line, where);
  Rollout rollout;
  read.at("row").get_to(rollout.row);
  rollout.sampled_at = read.value("sampled_at", rollout.sampled_at);
  read.at("prompt").get_to(rollout.text.prompt);
  read.at("completion").get_to(rollout.text.completion);
  read.at("answer").get_to(rollout.text.answer);
  read.at("prompt_tokens").get_to(rollout.prompt);
  read.at("completion_tokens").get_to(rollout.completion);
  read.at("logprobs").get_to(rollout.logprobs);
  read.at("ended").get_to(rollout.ended);
  read.at("reward").get_to(rollout.reward);
  read.at("advantage").get_to(rollout.advantage);
  read.at("skipped").get_to(rollout.skipped);
  if (read.contains("routes")) rollout.routes = unpacked_routes(read.at("routes").get<std::string>(), where);
  rollout.rewards = read.value("rewards", rollout.rewards);
  rollout.replaced = read.value("replaced", rollout.replaced);
  rollout.discarded = read.value("discarded", rollout.discarded);
  rollout.next = Next::nothing;
  if (read.contains("turns")) read_turns(read, rollout);
  require<DataError>(rollout.logprobs.size() == rollout.completion.size(), where, ": ", rollout.logprobs.size(),
                     " log probabilities of ", rollout.completion.size(), " tokens");
  require<DataError>(rollout.mask.empty() || rollout.mask.size() == rollout.completion.size(), where,
                     ": completion_mask has ", rollout.mask.size(), " values for ", rollout.completion.size(),
                     " tokens");
  return rollout;
} catch (const nlohmann::json::exception& error) {
  throw DataError(
      cat(where, ": is not a rollout: ", error.what(), ": remove the file and resume from an earlier ", "checkpoint"));
}

Batch batch_of(const std::vector<Rollout>& rollouts, const RunConfig& config) {
  const auto rows = rollouts.size(), length = static_cast<size_t>(config.data.seq_length), count = rows * length;
  Batch batch{.sequences = static_cast<int64_t>(rows),
              .sequence_length = config.data.seq_length,
              .tokens = std::vector<int32_t>(count),
              .targets = std::vector<int32_t>(count),
              .positions = std::vector<int32_t>(count),
              .sequence_ids = std::vector<int32_t>(count, kPadding),
              .loss_mask = std::vector<float>(count)};
  for (const ColumnSpec& spec : make_policy_objective(config)->columns())
    batch.columns.push_back({spec, std::vector<float>(count)});
  for (size_t r = 0; r < rows; ++r) {
    const Rollout& rollout = rollouts[r];
    std::vector<int32_t> tokens = rollout.prompt;
    tokens.insert(tokens.end(), rollout.completion.begin(), rollout.completion.end());
    require<DataError>(tokens.size() <= length + 1, "rollout ", rollout.row, " has ", tokens.size(),
                       " tokens, more than seq_length + 1 = ", length + 1);
    for (size_t place = 0; place < length; ++place) {
      const size_t at = r * length + place;
      batch.positions[at] = static_cast<int32_t>(place);
      if (place + 1 >= tokens.size()) continue;
      batch.tokens[at] = tokens[place];
      batch.targets[at] = tokens[place + 1];
      batch.sequence_ids[at] = 0;
      if (place + 1 < rollout.prompt.size() || !rollout.is_sampled(place + 1 - rollout.prompt.size())) continue;
      batch.loss_mask[at] = rollout.is_trained(config) ? 1.0f : 0.0f;
      for (Column& column : batch.columns)
        column.values[at] = column.spec.name == kAdvantages ? static_cast<float>(rollout.advantage)
                                                            : rollout.logprobs[place + 1 - rollout.prompt.size()];
    }
  }
  batch.count_loss_tokens();
  return batch;
}

std::vector<int32_t> routes_of(const std::vector<Rollout>& rollouts, const RunConfig& config) {
  const std::vector<LayerSpec> layers = config.model.layers();
  const int64_t K = config.model.moe.moe_router_topk, E = config.model.moe.num_experts;
  const int64_t routers = std::ranges::count_if(layers, [](const LayerSpec& layer) { return layer.moe; });
  const int64_t S = config.data.seq_length, rows = std::ssize(rollouts);  // rows follow each other in micro-batches
  std::vector<int32_t> routes(static_cast<size_t>(routers * rows * S * K));
  for (int64_t r = 0; r < routers; ++r)
    for (int64_t row = 0; row < rows; ++row) {
      const Rollout& rollout = rollouts[static_cast<size_t>(row)];
      const int64_t read = std::ssize(rollout.prompt) + std::ssize(rollout.completion) - 1;
      require<DataError>(std::ssize(rollout.routes) == read * routers * K &&
                             std::ranges::all_of(rollout.routes, [&](int32_t expert) { return expert < E; }),
                         "rollout ", rollout.row, " has ", rollout.routes.size(), " routes, where ", read, " tokens, ",
                         routers, " routers and ", K, " of ", E,
                         " experts need others: resume from the checkpoint at which its sampling began");
      for (int64_t place = 0; place < S; ++place)
        for (int64_t k = 0; k < K; ++k)
          routes[static_cast<size_t>(((r * rows + row) * S + place) * K + k)] =
              place < read ? rollout.routes[static_cast<size_t>((place * routers + r) * K + k)]
                           : static_cast<int32_t>(k);
    }
  return routes;
}

}  // namespace witan
