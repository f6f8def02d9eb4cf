#include "witan/generate/generation_config.h"

#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan {
namespace {

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
  // One id or a list of them.
  std::vector<int32_t> ids(const char* key) const {
    std::vector<int32_t> ids;
    const Json* value = find(key);
    if (!value) return ids;
    for (const Json& id : value->is_array() ? *value : Json::array({*value}))
      ids.push_back(static_cast<int32_t>(to_integer(key, id, 0)));
    return ids;
  }

 private:
  // Null, as these files often say, is the same as nothing.
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
  config.repetition_penalty = reader.number("repetition_penalty", 0);
  config.max_new_tokens = reader.integer("max_new_tokens", 1);
  config.stop_tokens = reader.ids("eos_token_id");
  return config;
}

}  // namespace witan
