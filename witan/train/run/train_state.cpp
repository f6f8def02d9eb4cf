#include "witan/train/run/train_state.h"

#include <nlohmann/json.hpp>

#include "witan/base/error.h"

namespace witan {

Json TrainState::to_json() const {
  return {{"step", step},           {"consumed_samples", consumed_samples},
          {"updates", updates},     {"skipped_in_a_row", skipped_in_a_row},
          {"elapsed_s", elapsed_s}, {"data", data}};
}

TrainState TrainState::from_json(const Json& json) {
  const auto count = [&](const char* key) {
    const auto found = json.find(key);
    require<CheckpointError>(found != json.end() && found->is_number_integer() && *found >= 0, "the checkpoint's ", key,
                             " must be a whole number, not negative");
    return found->get<int64_t>();
  };
  TrainState state{count("step"), count("consumed_samples"), count("updates"), count("skipped_in_a_row"), 0, {}};
  const auto elapsed = json.find("elapsed_s");
  require<CheckpointError>(elapsed != json.end() && elapsed->is_number(),
                           "the checkpoint's elapsed_s must be a number");
  state.elapsed_s = elapsed->get<double>();
  const auto data = json.find("data");
  require<CheckpointError>(data != json.end() && data->is_string(), "the checkpoint's data must be a text");
  state.data = data->get<std::string>();
  return state;
}

}  // namespace witan
