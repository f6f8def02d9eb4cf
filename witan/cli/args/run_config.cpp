#include "witan/cli/args/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/compat/megatron.h"
#include "witan/convert/model_function.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/parallel/peers.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/idle_keys.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/state/run_start.h"
#include "witan/train/weights/initial_weights.h"
#include "witan/train/weights/upcycle.h"

namespace witan::cli {
namespace {

// Does not throw, unlike fmt::print: a message that cannot be written must not end the command.
void say(std::FILE* err, const std::string& line) {
  std::fputs((line + "\n").c_str(), err);
}

// Lists each flag once, grouped by reason; flags that need no reason come first.
void say_harmless(std::FILE* err, const MegatronLine& line) {
  std::vector<std::pair<std::string, std::string>> reasons = {{"", ""}};
  for (const auto& [flag, why] : line.harmless) {
    auto known = std::find_if(reasons.begin(), reasons.end(), [&](const auto& reason) { return reason.first == why; });
    if (known == reasons.end()) known = reasons.insert(reasons.end(), {why, ""});
    known->second += (known->second.empty() ? "" : ", ") + flag;
  }
  std::string flags;
  for (const auto& [why, names] : reasons)
    if (!names.empty())
      flags += fmt::format("{}{}{}", flags.empty() ? "" : ", ", names, why.empty() ? "" : " (" + why + ")");
  if (!flags.empty()) say(err, "accepted without effect: " + flags);
}

void say_defaults(std::FILE* err, const MegatronLine& line, const std::vector<std::string>& changed) {
  say(err, fmt::format("Megatron-LM's defaults apply ({}; --no-megatron: Witan's): {}", line.why,
                       changed.empty() ? "they are Witan's here" : fmt::format("{}", fmt::join(changed, ", "))));
}

// `place_of` returns the place of a key within the source.
void record(GivenConfig& given, const std::set<std::string>& keys, ValueSource source,
            const std::function<std::string(const std::string&)>& place_of) {
  for (const std::string& key : keys) {
    given.sources[key] = source;
    given.places[key] = place_of(key);
  }
}

// Returns "SOURCE:LINE" for a key. A key that the source's mesh stands for has the line of the mesh.
std::function<std::string(const std::string&)> place_in(std::string source, std::map<std::string, int64_t> lines) {
  return [source = std::move(source), lines = std::move(lines)](const std::string& key) {
    const auto own = lines.find(key), mesh = lines.find("mesh");
    if (own != lines.end()) return cat(source, ":", own->second);
    return mesh == lines.end() ? source : cat(source, ":", mesh->second, ", mesh");
  };
}

// Experts need sequence parallelism with tensor parallelism (RunConfig::validate). It is switched on if the call asks
// for tensor-parallel ranks and does not set sequence_parallel in the same source or in one that overrides it.
void follow_tensor_ranks(GivenConfig& given) {
  const ValueSource source = given.source("tensor_model_parallel_size");
  if (!given.said("tensor_model_parallel_size") || given.source("sequence_parallel") >= source) return;
  RunConfig& config = given.config;
  if (config.parallel.tensor_model_parallel_size == 1 || config.model.moe.num_experts == 0) return;
  config.parallel.sequence_parallel = true;
  given.sources["sequence_parallel"] = source;
  given.places["sequence_parallel"] = given.place("tensor_model_parallel_size");
}

// If the call sets lr below the default of min_lr, and nothing sets min_lr, min_lr becomes a tenth of lr, which is the
// ratio of the defaults.
void follow_lr(GivenConfig& given) {
  OptimizerConfig& optimizer = given.config.optimizer;
  if (!given.said("lr") || given.source("min_lr") != ValueSource::witan_default || optimizer.min_lr <= optimizer.lr)
    return;
  optimizer.min_lr = optimizer.lr / 10;
  given.sources["min_lr"] = given.source("lr");
  given.places["min_lr"] = given.place("lr");
}

// Sets Megatron-LM's defaults for keys that neither the file nor the flags set, and prints them.
void apply_megatron_defaults(const MegatronLine& line, GivenConfig& given, std::FILE* err) {
  std::set<std::string> said;
  for (const auto& [key, source] : given.sources)
    if (given.said(key)) said.insert(key);
  require_megatron_sizes(said, line);
  RunConfig before = given.config;
  say_defaults(err, line, set_megatron_defaults(given.config, said));
  const Fields was = before.fields(), is = given.config.fields();
  for (size_t i = 0; i < was.size(); ++i)
    if (was[i].text() != is[i].text()) given.sources[is[i].name] = ValueSource::megatron_default;
}

// Applies the preset, the file and the flags, each with the keys that its mesh stands for.
void apply(GivenConfig& given, RunConfig& config, const ConfigArgs& args) {
  given.preset = args.preset();
  given.file = args.file();
  std::set<std::string> keys = args.apply_preset();
  keys.merge(expand_mesh(config.parallel, keys, given.preset));
  record(given, keys, ValueSource::preset, place_in("preset " + given.preset, args.preset_lines()));
  keys = args.apply_file();
  keys.merge(expand_mesh(config.parallel, keys, args.file()));
  record(given, keys, ValueSource::file, place_in(given.file, args.file_lines()));
  keys = args.apply_flags();
  given.mesh = config.parallel.mesh;
  const std::set<std::string> own = keys;
  keys.merge(expand_mesh(config.parallel, keys));
  record(given, keys, ValueSource::flag,
         [&](const std::string& key) { return own.contains(key) ? flag_name(key) : "--mesh"; });
}

// The lines of keys in the run's config.toml; none if the file is lost and the configuration comes from a checkpoint.
std::map<std::string, int64_t> lines_of_run(const fs::path& config_toml) {
  std::error_code none;
  if (!fs::is_regular_file(config_toml, none) || fs::file_size(config_toml, none) == 0) return {};
  RunConfig config;
  return lines_of_keys(config.fields(), read_file(config_toml), config_toml.string());
}

// Starts from the configuration of the run on disk, and applies the call over it.
void resume(GivenConfig& given, RunConfig& config, const ConfigArgs& args) {
  config = *given.saved;
  RunConfig defaults;
  const Fields was = config.fields(), usual = defaults.fields();
  std::set<std::string> keys;
  for (size_t i = 0; i < was.size(); ++i)
    if (was[i].text() != usual[i].text()) keys.insert(was[i].name);
  const fs::path config_toml = given.run / "config.toml";
  record(given, keys, ValueSource::saved_run, place_in(config_toml.string(), lines_of_run(config_toml)));
  apply(given, config, args);
  given.changes = changed_identity(*given.saved, config);
}

// Whether the files are equal byte for byte; false if one cannot be read.
bool equal_files(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  if (!fs::is_regular_file(a, error) || !fs::is_regular_file(b, error)) return false;
  if (fs::file_size(a, error) != fs::file_size(b, error)) return false;
  return std::ranges::equal(MappedFile(a).bytes(), MappedFile(b).bytes());
}

// Nothing if the file cannot be read; the code that uses the tokenizer reports the reason.
std::optional<TokenizerSpec> readable(const fs::path& tokenizer) try {
  return read_tokenizer(tokenizer);
} catch (const Error&) {
  return std::nullopt;
}

// Weights know tokens by their ids. Refuses a tokenizer that assigns ids to other tokens than the tokenizer that the
// weights were trained with, and warns of harmless differences.
void require_same_vocabulary(const std::string& given, const WeightSource& source, const std::string& asked,
                             std::FILE* err) {
  const fs::path own = tokenizer_of(source).value_or(source.where());
  if (equal_files(own, given)) return;
  const auto theirs = readable(own), ours = readable(given);
  if (!theirs || !ours) return;
  const VocabularyMatch match = match_vocabularies(*theirs, *ours);
  const std::string both = cat("tokenizer = ", given, " is not that of the weights, ", own.string(), ": ");
  const auto first = static_cast<size_t>(match.first.value_or(0));
  const auto token = [&] {
    return cat("token ", first, " is \"", clipped(ours->tokens[first]), "\" in the one and \"",
               clipped(theirs->tokens[first]), "\" in the other");
  };
  require<ConfigError>(match.different == 0, asked, both, token(), ", and ", match.different, " of ", match.common,
                       " differ: the weights would use a token's embedding for another token. Leave tokenizer out, "
                       "and the run takes the model's own; or leave init_from out");
  if (match.renamed > 0)
    say(err, cat("warning: ", asked, both, token(), ", and so do ", match.renamed,
                 " added tokens in all; their embeddings are what the weights have of them"));
  else if (theirs->tokens.size() == ours->tokens.size() && Tokenizer(*theirs).hash() != Tokenizer(*ours).hash())
    say(err, cat("warning: ", asked, both, "both have the same tokens, but do not divide every text into them alike"));
}

// Takes the keys of the model that the call does not set from the source, except `own` and, if the source has no
// adapters, the keys of adapters.
void take_keys(GivenConfig& given, ModelConfig model, const std::set<std::string>& own = {}) {
  const Fields theirs = model.fields(), ours = given.config.model.fields();
  for (size_t i = 0; i < ours.size(); ++i) {
    const std::string& name = ours[i].name;
    const bool takes = shapes_function(theirs[i]) || name == "dtype" || name.starts_with("frozen_");
    const bool of_the_run = own.contains(name) || (name.starts_with("lora_") && model.lora_rank == 0);
    if (!takes || of_the_run || given.said(name) || ours[i].text() == theirs[i].text()) continue;
    std::visit([&](auto* value) { *value = *std::get<decltype(value)>(theirs[i].value); }, ours[i].value);
    given.sources[name] = ValueSource::first_weights;
  }
}

void take_tokenizer(GivenConfig& given, const fs::path& tokenizer) {
  given.config.data.tokenizer = tokenizer.string();
  given.sources["tokenizer"] = ValueSource::first_weights;
}

// A new run that starts from a model's weights takes the model's keys and its tokenizer from there, and so does a run
// that starts over from another model than before. Keys that the call sets differently must not change the function
// that the weights compute.
void take_model(GivenConfig& given, std::FILE* err) {
  TrainConfig& train = given.config.train;
  if (train.init_from.empty()) return;
  const std::string asked = cat("init_from = ", train.init_from, ": ");
  std::vector<std::string> warnings;  // said when the run is about to start from it (check_first_weights)
  const auto source = open_weights(train.init_from, train.runs_folder, asked, warnings, train.init_base);
  if (!given.saved || given.saved->train.init_from != train.init_from) {
    take_keys(given, source->model());
    if (!given.said("tokenizer")) given.config.data.tokenizer.clear();
  }
  require_same_function(given.config.model, *source, asked);
  if (const std::string& own = given.config.data.tokenizer; !own.empty())
    return require_same_vocabulary(own, *source, asked, err);
  if (const auto tokenizer = tokenizer_of(*source)) take_tokenizer(given, *tokenizer);
}

// Whether a run that continues another run's training keeps its own value of the key: its name and folder, its origin,
// its layout, and its logs.
bool is_of_one_run(const Field& field) {
  constexpr std::array<std::string_view, 8> kKeys = {"run",        "runs_folder", "init_from",     "init_base",
                                                     "init_state", "upcycle",     "record_routes", "replay_routes"};
  constexpr std::array<std::string_view, 3> kSections = {"parallel", "log", "load"};
  return std::ranges::find(kKeys, field.name) != kKeys.end() ||
         std::ranges::find(kSections, field.section) != kSections.end();
}

// A new run that continues another run's training (init_state = training) takes all keys that the call does not set,
// and so does a run that starts over from another run's training than before.
void take_training(GivenConfig& given) {
  TrainConfig train = given.config.train;
  if (!train.branches() || train.init_from.empty()) return;
  if (given.saved && given.saved->train.branches() && given.saved->train.init_from == train.init_from) return;
  train.train_iters = std::numeric_limits<int64_t>::max();  // the other run's number is not known yet
  std::vector<std::string> warnings;                        // said when the run is about to start from it (find_start)
  RunConfig before = config_of(find_branched(train, warnings));
  const Fields theirs = before.fields(), ours = given.config.fields();
  for (size_t i = 0; i < ours.size(); ++i) {
    const std::string& name = ours[i].name;
    if (is_of_one_run(ours[i]) || given.said(name)) continue;
    if (ours[i].text() == theirs[i].text()) continue;
    std::visit([&](auto* value) { *value = *std::get<decltype(value)>(theirs[i].value); }, ours[i].value);
    given.sources[name] = ValueSource::first_weights;
  }
}

// A new run that is upcycled takes the keys of the dense model and its tokenizer, but none of routing.
void take_dense_model(GivenConfig& given) {
  const TrainConfig& train = given.config.train;
  if (train.upcycle.empty() || (given.saved && given.saved->train.upcycle == train.upcycle)) return;
  std::vector<std::string> warnings;  // said when the run is about to start from it (check_first_weights)
  const Checkpoint dense = open_dense_model(train, warnings);
  std::set<std::string> routing;
  for (const Field& field : given.config.model.moe.fields()) routing.insert(field.name);
  take_keys(given, config_of(dense).model, routing);
  if (given.said("tokenizer")) return;
  given.config.data.tokenizer.clear();
  if (has_extra_file(dense, "tokenizer.json")) take_tokenizer(given, dense.folder / "tokenizer.json");
}

// Whether the message contains "KEY = VALUE", and not as part of a longer word or number.
bool names(const std::string& message, const std::string& key, const std::string& value) {
  const auto is_word = [&](size_t at) {
    return at < message.size() && (std::isalnum(static_cast<unsigned char>(message[at])) != 0 || message[at] == '_');
  };
  const std::string words = key + " = " + value;
  for (size_t at = message.find(words); at != std::string::npos; at = message.find(words, at + 1))
    if (!(at > 0 && is_word(at - 1)) && !is_word(at + words.size())) return true;
  return false;
}

// A sentence about the values in the message that come from `source`, described as `where`, and the flags that change
// them; empty if there are none.
std::string values_from(const GivenConfig& given, ValueSource source, const std::string& where,
                        const std::string& message) {
  RunConfig said = given.config;
  std::vector<std::string> values, flags;
  for (const Field& field : said.fields()) {
    const std::string& key = field.name;
    if (given.source(key) != source || (source == ValueSource::saved_run && is_identity(field))) continue;
    std::string value = field.text();  // texts carry TOML's quotes
    std::erase(value, '"');
    if (!names(message, key, value)) continue;
    values.push_back(key + " = " + value);
    const std::string_view axis = expert_axis_of(key);
    flags.push_back(axis.empty() ? flag_name(key) : fmt::format("{} (or {}=N in --mesh)", flag_name(key), axis));
  }
  if (values.empty()) return "";
  const bool one = values.size() == 1;
  return fmt::format("{} {} from {}: give {} to change {}", fmt::join(values, " and "), one ? "is" : "are", where,
                     fmt::join(flags, " and "), one ? "it" : "them");
}

// Whether the call asks for something by setting this key: with a value that is not the default (which files may spell
// out), or with a number on the command line. 0 and false ask for nothing.
bool asks(const GivenConfig& given, const Field& field, const Field& usual) {
  const ValueSource source = given.source(field.name);
  if (source != ValueSource::file && source != ValueSource::flag) return false;
  const auto* integer = std::get_if<int64_t*>(&field.value);
  const auto* real = std::get_if<double*>(&field.value);
  const auto* on = std::get_if<bool*>(&field.value);
  const auto* text = std::get_if<std::string*>(&field.value);
  if ((integer && **integer == 0) || (real && **real == 0) || (on && !**on) || (text && **text == "0")) return false;
  const bool number = integer || real;
  return field.text() != usual.text() || (number && source == ValueSource::flag);
}

constexpr const char* kHead = "# from ";

}  // namespace

void add_megatron_flag(CLI::App& command) {
  add_flag(command, "--megatron,--no-megatron", "Megatron-LM's defaults [where its flags or an @FILE are given]")
      .group("configuration");
}

void RunConfigArgs::add(CLI::App& command) {
  add_megatron_flag(command);
  args_.emplace(command, flags_.fields());
}

ValueSource GivenConfig::source(const std::string& key) const {
  const auto found = sources.find(key);
  return found == sources.end() ? ValueSource::witan_default : found->second;
}

std::string GivenConfig::place(const std::string& key) const {
  switch (source(key)) {
    case ValueSource::witan_default:
      return "default";
    case ValueSource::megatron_default:
      return "Megatron-LM's default";
    case ValueSource::first_weights:
      return config.train.upcycle.empty() ? "init_from = " + config.train.init_from
                                          : "upcycle = " + config.train.upcycle;
    default:
      return places.at(key);
  }
}

GivenConfig read_given_config(const Context& context, RunConfig& config, const ConfigArgs& args, OtherRun other) {
  const MegatronLine* line = context.megatron.get();
  GivenConfig given;
  apply(given, config, args);
  if (line && line->defaults && !given.said("run")) {
    config.train.run = line->name;
    given.sources["run"] = ValueSource::megatron_default;
  }
  check_new_name(config.train.runs_folder, config.train.run);
  given.run = fs::path(config.train.runs_folder) / config.train.run;
  given.saved = saved_config(given.run);
  given.config = config;
  const GivenConfig alone = given;
  if (given.saved) {
    given.saved->train.runs_folder = config.train.runs_folder;  // the run may have been moved
    given.saved->train.run = config.train.run;
    resume(given, config, args);
    given.config = config;
  }
  if (other == OtherRun::leave && !given.changes.empty()) {
    say(context.err,
        fmt::format(
            "shown for a new run (--run NAME): {} has another configuration ({}), so that `witan train` would refuse "
            "to resume it with these options",
            given.run.string(), fmt::join(given.changes, ", ")));
    given = alone;
    given.saved.reset();
  }
  if (given.saved) {
    if (line)
      say(context.err,
          fmt::format("the run {} is resumed: its saved configuration applies where the command line sets nothing",
                      given.run.string()));
  } else {
    if (line && line->defaults) apply_megatron_defaults(*line, given, context.err);
  }
  if (!given.saved || other == OtherRun::replace) {
    if (!line || !line->defaults) take_training(given);
    take_model(given, context.err);
    take_dense_model(given);
  }
  follow_tensor_ranks(given);
  follow_lr(given);
  if (line) say_harmless(context.err, *line);
  return given;
}

std::vector<std::string> config_warnings(const GivenConfig& given, const RunConfig& resolved) {
  RunConfig values = given.config, defaults;  // as the call gave them, not as they were resolved
  const Fields fields = values.fields(), usual = defaults.fields();
  std::vector<IdleKey> idle = idle_keys(resolved);
  std::erase_if(idle, [&](const IdleKey& one) {
    const auto field = std::ranges::find(fields, one.key, &Field::name);
    return !asks(given, *field, usual[static_cast<size_t>(field - fields.begin())]);
  });
  std::vector<std::string> warnings = describe_idle(idle, fields);
  const std::string unit = resolved.optimizer.counts_samples() ? "samples" : "iters";
  const int64_t warmup = resolved.optimizer.warmup(), length = resolved.schedule_length();
  if (warmup >= length && given.said("lr_warmup_" + unit))
    warnings.push_back(cat("lr_warmup_", unit, " = ", warmup, " is not below train_", unit, " = ", length,
                           ": the learning rate will not reach lr"));
  const Layout layout(resolved.parallel, static_cast<int>(resolved.parallel.ranks), resolved.model.moe.num_experts);
  if (std::string split = split_expert_host(resolved.parallel, layout); !split.empty())
    warnings.push_back(std::move(split));
  for (std::string& warning : warnings) warning.insert(0, "warning: ");
  return warnings;
}

ExitCode naming_sources(const GivenConfig& given, const std::function<ExitCode()>& body) {
  try {
    return body();
  } catch (const ConfigError& error) {
    std::string remembered;
    const auto add = [&](ValueSource source, const std::string& where) {
      const std::string values = values_from(given, source, where, error.what());
      if (!values.empty()) remembered += ". " + values;
    };
    if (given.saved) add(ValueSource::saved_run, "config.toml of the run " + given.run.string());
    if (!given.preset.empty()) add(ValueSource::preset, "the preset " + given.preset);
    if (remembered.empty()) throw;
    throw ConfigError(error.what() + remembered);
  }
}

std::string origin_line(const std::string& preset, const std::string& file) {
  if (preset.empty() && file.empty()) return "";
  const std::string from = preset.empty() ? "" : "preset " + preset;
  return origin_line(cat(from, from.empty() || file.empty() ? "" : ", ", clipped(file, 200)));
}

std::string origin_line(const std::string& source) {
  return kHead + source + '\n';
}

std::string origin_line_of(const fs::path& config_toml) {
  std::error_code none;
  if (!fs::is_regular_file(config_toml, none)) return "";  // a FIFO would wait for a writer
  std::ifstream file(config_toml);
  std::string line;
  return std::getline(file, line) && line.starts_with(kHead) ? line + '\n' : "";
}

std::string read_origin(const fs::path& config_toml) {
  std::string line = origin_line_of(config_toml);
  if (line.empty()) return "";
  line.pop_back();
  return clipped(line.substr(std::string_view(kHead).size()), 300);
}

}  // namespace witan::cli
