#include "witan/generate/input_files.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// Further settings by which transformers draws tokens, with the values that change nothing (GenerationConfig of
// transformers 5; null changes nothing for all of them).
struct UnsupportedSetting {
  const char* key;
  const char* neutral;
  bool sampling;  // has no effect without sampling
};

constexpr UnsupportedSetting kUnsupported[] = {
    {"typical_p", "1.0", true},
    {"epsilon_cutoff", "0.0", true},
    {"eta_cutoff", "0.0", true},
    {"top_h", "null", true},
    {"no_repeat_ngram_size", "0", false},
    {"num_beams", "1", false},
    {"penalty_alpha", "0.0", false},
    {"guidance_scale", "1.0", false},
    {"min_length", "0", false},
    {"min_new_tokens", "0", false},
    {"bad_words_ids", "[]", false},
    {"sequence_bias", "[]", false},
    {"suppress_tokens", "[]", false},
    {"begin_suppress_tokens", "[]", false},
    {"forced_bos_token_id", "null", false},
    {"forced_eos_token_id", "null", false},
    {"exponential_decay_length_penalty", "null", false},
    {"stop_strings", "[]", false},
};

class Reader {
 public:
  explicit Reader(const fs::path& file) : name_(file.string()), json_(parse_json(read_file(file), name_)) {
    require<CorruptionError>(json_.is_object(), name_, ": an object is expected, found ", json_.type_name());
  }

  std::optional<double> number(const char* key, double least) const {
    const Json* value = find(key);
    if (!value) return {};
    require<CorruptionError>(value->is_number() && value->get<double>() >= least, name_, ": ", key, " = ",
                             value->dump(), ", but it must be a number of at least ", least);
    return value->get<double>();
  }
  std::optional<int64_t> integer(const char* key, int64_t least) const {
    const Json* value = find(key);
    return value ? std::optional(to_integer(key, *value, least)) : std::nullopt;
  }
  bool says_no(const char* key) const {
    const Json* value = find(key);
    return value && value->is_boolean() && !value->get<bool>();
  }
  // Accepts one id or a list of ids.
  std::vector<int32_t> ids(const char* key) const {
    std::vector<int32_t> ids;
    const Json* value = find(key);
    if (!value) return ids;
    for (const Json& id : value->is_array() ? *value : Json::array({*value}))
      ids.push_back(static_cast<int32_t>(to_integer(key, id, 0)));
    return ids;
  }

  std::vector<std::string> unsupported() const {
    std::vector<std::string> all;
    const bool greedy = says_no("do_sample");
    for (const auto& [key, neutral, sampling] : kUnsupported)
      if (const Json* value = find(key); value && *value != Json::parse(neutral) && !(sampling && greedy))
        all.push_back(cat(key, " = ", clipped(value->dump())));
    return all;
  }

 private:
  // Null, which these files often contain, counts as absent.
  const Json* find(const char* key) const {
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  int64_t to_integer(const char* key, const Json& value, int64_t least) const {
    const bool good = value.is_number_integer() && value >= least && value <= int64_t{INT32_MAX};
    require<CorruptionError>(good, name_, ": ", key, " = ", value.dump(), ", but it must be an integer of at least ",
                             least);
    return value.get<int64_t>();
  }

  std::string name_;
  Json json_;
};

}  // namespace

GenerationConfig read_generation_config(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  const Reader reader(file);
  GenerationConfig config;
  config.temperature = reader.says_no("do_sample") ? std::optional(0.0) : reader.number("temperature", 0);
  config.top_k = reader.integer("top_k", 0);
  config.top_p = reader.number("top_p", 0);
  config.min_p = reader.number("min_p", 0);
  config.repetition_penalty = reader.number("repetition_penalty", 0);
  config.max_new_tokens = reader.integer("max_new_tokens", 1);
  config.stop_tokens = reader.ids("eos_token_id");
  config.unsupported = reader.unsupported();
  return config;
}

namespace {

std::string prompt_of_json(const std::string& line, const std::string& where) {
  const Json json = parse_json(line, where);
  const Json* prompt = &json;
  if (json.is_object()) {
    const auto at = json.find("prompt");
    prompt = at == json.end() ? nullptr : &*at;
  }
  require<DataError>(prompt && prompt->is_string(), where,
                     ": a string or an object with a string \"prompt\" is expected");
  return *prompt;
}

}  // namespace

std::vector<std::string> read_prompt_file(const fs::path& file) {
  std::vector<std::string> prompts;
  std::string bytes = read_file(file);
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.erase(0, 3);  // a byte order mark
  std::istringstream text(std::move(bytes));
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::string where = cat(file.string(), ":", number);
    prompts.push_back(file.extension() == ".jsonl" ? prompt_of_json(line, where) : line);
  }
  require<DataError>(!prompts.empty(), file.string(), " has no prompts: it needs one in each line");
  return prompts;
}

}  // namespace witan
