#include "witan/generate/generation_batch.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "witan/base/error.h"
#include "witan/kernels/gemm/product_scopes.h"

namespace witan {
namespace {

// The assumed cost of a token after cached ones, in tokens of a whole prompt, which tensor cores compute.
constexpr int64_t kCostBehindOthersOnGpu = 8;

// Numbers of texts to rehearse. Steps of few texts have kernels, and so memory, that depend on their number. Steps of
// more texts take more memory the more there are, so that some numbers stand for the rest, and the work grows with the
// batch, not with its square.
int64_t next_rehearsed(int64_t texts) {
  return texts < kernels::FewRows::kMostWide ? texts + 1 : texts + texts / 8;
}

bool stops(const GenerateOptions& options, int32_t token) {
  return token == options.end_of_text || std::ranges::count(options.stop_tokens, token) > 0;
}

}  // namespace

GenerationBatch::GenerationBatch(Stream& stream, Transformer& model, StateSize size, GenerationMode mode)
    : stream_(stream),
      model_(model),
      size_(size),
      repeatable_(mode.repeatable),
      reuses_(mode.reuse_prefixes),
      pipeline_(mode.pipeline),
      routes_(mode.routes),
      next_(stream, model, mode.temperature) {
  size_.all_positions = size_.all_positions || (repeatable_ && stream.plans_for_cuda());
  size_.cache = resolve_cache(mode.cache, model.config(), {repeatable_, stream.plans_for_cuda(), model.tensor_ranks()});
  size_.chunks = repeatable_ || !stream.plans_for_cuda();
  StateSize held = size_;
  if (model.token_ranks() > 1) {  // the last row holds tokens that make their number divide
    ++held.rows;
    held.positions = std::max<int64_t>(held.positions, model.token_ranks());
  }
  states_ = model.make_states(stream, held);
  const bool whole = model.token_ranks() == 1 && !model.divides_losses() && !divides_layers();
  if (mode.recorded && whole && routes_ == nullptr &&
      RecordedSteps::possible(stream, model.config(), states_, repeatable_))
    recorded_.emplace(stream, model, states_, size_.rows, repeatable_);
  for (int64_t row = 0; row < size.rows; ++row) free_.push_back({row});
}

// The number of leading tokens that the row and the prompt share, if the row's states can be continued from there.
int64_t GenerationBatch::reusable(const Row& row, const GenerationRequest& request) const {
  // Only computed tokens can be scored.
  if (!reuses_ || request.prompt_logprobs || request.options.max_tokens == 0) return 0;
  const auto [in_prompt, in_row] = std::ranges::mismatch(request.prompt, row.tokens);
  const auto most =
      static_cast<int64_t>(request.prompt.size()) - 1;  // the last token must be computed for the first logits
  const int64_t same = resumable(states_, std::min<int64_t>(most, in_prompt - request.prompt.begin()),
                                 static_cast<int64_t>(row.tokens.size()), row.reach);
  // Attention computes whole prompts in tiles, but tokens after cached ones one by one: many of these take longer.
  const int64_t rest = static_cast<int64_t>(request.prompt.size()) - same;
  if (rest * (stream_.plans_for_cuda() ? kCostBehindOthersOnGpu : 1) > same) return 0;
  return same;
}

// The negative of reusable() for each free row. Stages of a pipeline hold different layers, whose states may be
// continued from different numbers of tokens: all take the fewest, found as the largest negative.
std::vector<int64_t> GenerationBatch::reusable_of_rows(const GenerationRequest& request) {
  std::vector<float> negative;
  for (const Row& row : free_) negative.push_back(-static_cast<float>(reusable(row, request)));
  const bool any = std::ranges::any_of(free_, [](const Row& row) { return !row.tokens.empty(); });
  if (divides_layers() && reuses_ && any) {
    const Tensor shared = stream_.empty({std::ssize(negative)}, DType::f32);
    stream_.write(shared, negative.data());
    pipeline_->all_reduce(stream_, shared, Reduce::max);
    stream_.read(negative.data(), shared);
  }
  return {negative.begin(), negative.end()};
}

// Takes the row with the most tokens in common; else the one that has been free for the longest time. A dry run
// computes everything that could be needed.
GenerationBatch::Place GenerationBatch::take_row(const GenerationRequest& request) {
  const std::vector<int64_t> negative = reusable_of_rows(request);
  const auto most = std::ranges::min_element(negative);
  const bool reuses = *most < 0 && !stream_.is_meta();
  const auto best = free_.begin() + (reuses ? most - negative.begin() : 0);
  Place place{std::move(*best), reuses ? -*most : 0};
  free_.erase(best);
  if (place.past == 0) place.row.reach = 0;
  return place;
}

void check_request(const Transformer& model, const GenerationRequest& request) {
  const Sampler options_mean_something(request.options.sampler);
  require<DataError>(!request.prompt.empty(), "generate: the prompt has no tokens");
  const int64_t words = model.config().vocab_size;
  for (const int32_t token : request.prompt)
    require<DataError>(token >= 0 && token < words, "generate: the prompt has token ", token,
                       ", which is not one of the model's ", words);
  const auto prompt = static_cast<int64_t>(request.prompt.size()), more = request.options.max_tokens;
  require<ConfigError>(more >= 0, "generate: max_tokens must not be negative, got ", more);
  const int64_t fit = tokens_that_fit(model, prompt, more);
  require<ConfigError>(fit == more, "generate: a prompt of ", prompt, " tokens and max_tokens = ", more,
                       " do not fit into ", model.config().attention.most_positions_key(), " = ",
                       *model.most_positions(), ", ", model.config().attention.most_positions_reason(), ": ",
                       fit > 0 ? cat("set max_tokens to at most ", fit) : "shorten the prompt");
}

size_t GenerationBatch::admit(GenerationRequest request) {
  const uint64_t seed = request.options.sampler.seed;
  return admit_group(std::move(request), std::span(&seed, 1));
}

size_t GenerationBatch::admit_group(GenerationRequest request, std::span<const uint64_t> seeds) {
  check_request(model_, request);
  const auto prompt = static_cast<int64_t>(request.prompt.size()), more = request.options.max_tokens;
  require<ConfigError>(prompt + more <= size_.positions, "generate: a prompt of ", prompt,
                       " tokens and max_tokens = ", more, " do not fit into a cache of ", size_.positions,
                       " positions: ask for fewer tokens, or give the caches more positions");
  require<ConfigError>(has_room(seeds.size()), "generate: ",
                       seeds.size() == 1 ? cat("all ", size_.rows, " rows of the caches are taken")
                                         : cat("a group of ", seeds.size(), " texts needs two free rows, and of ",
                                               size_.rows, " rows ", free_.size(), " are free"));
  require<ConfigError>(seeds.size() == 1 || (more > 0 && !request.prompt_logprobs),
                       "generate: a group of texts needs max_tokens of 1 at least, and no prompt_logprobs");
  require<ConfigError>(!divides_layers() || (!request.prompt_logprobs && request.top_logprobs <= 0),
                       "generate: with pipeline_model_parallel_size = ", pipeline_ ? pipeline_->size() : 1,
                       " neither prompts are scored nor top tokens given; ask for the tokens' own log probabilities");
  Place place = take_row(request);
  const size_t first = admitted_;
  Prompt read{std::move(place.row), place.past, {request.prompt.begin() + place.past, request.prompt.end()}, {}};
  if (place.past > 0) {
    const auto of_token = std::ssize(read.row.routes) / std::ssize(read.row.tokens);
    read.routes.assign(read.row.routes.begin(), read.row.routes.begin() + place.past * of_token);
  }
  for (const uint64_t seed : seeds) {
    request.options.sampler.seed = seed;
    Text& text = read.texts.emplace_back(Text{admitted_++, request, Sampler(request.options.sampler)});
    text.out.cached_prompt_tokens = text.number == first ? place.past : prompt;
    if (text.sampler.changes_logits()) text.seen.all.insert(request.prompt.begin(), request.prompt.end());
  }
  if (more > 0 || request.prompt_logprobs) {
    prompts_.push_back(std::move(read));
    return first;
  }
  Text& empty = read.texts.front();
  empty.row = std::move(read.row);
  empty.past = read.past;
  end(empty, Finish::length);
  return first;
}

void GenerationBatch::step(const OnToken& on_token) {
  if (idle()) return;
  const kernels::RowProducts by_row(repeatable_);
  const kernels::FewRows few;
  std::vector<kernels::CacheRun> runs;
  std::vector<int32_t> tokens;
  for (const Text& text : running_) {
    runs.push_back({text.row.number, text.past, 1});
    tokens.push_back(text.unread);
  }
  for (const Prompt& prompt : prompts_) {
    if (prompt.unread.empty()) continue;
    runs.push_back({prompt.row.number, prompt.past, static_cast<int64_t>(prompt.unread.size())});
    tokens.insert(tokens.end(), prompt.unread.begin(), prompt.unread.end());
  }
  const int64_t spare = -std::ssize(tokens) % model_.token_ranks();
  if (spare != 0) {
    runs.push_back({size_.rows, 0, model_.token_ranks() + spare});
    tokens.resize(tokens.size() + static_cast<size_t>(runs.back().count));
  }
  std::vector<Text*> texts;
  for (Text& text : running_) texts.push_back(&text);
  for (Prompt& prompt : prompts_)
    for (Text& text : prompt.texts)
      if (!prompt.unread.empty() && text.request.options.max_tokens > 0) texts.push_back(&text);
  const Tensor logits = logits_of_step(runs, tokens);
  if (routes_ != nullptr && !stream_.is_meta()) note_routes();
  if (!texts.empty()) {
    std::vector<GeneratedToken> chosen = choose(logits, texts);
    const size_t running = running_.size();
    for (size_t i = 0; i < texts.size(); ++i)
      if (i < running)
        accept(*texts[i], std::move(chosen[i]), on_token);
      else
        texts[i]->first = std::move(chosen[i]);
  }
  for (Prompt& prompt : prompts_) prompt.unread.clear();
  begin_texts(on_token);
  std::erase_if(running_, [](const Text& text) { return text.ended; });
}

// Records the routes of the step's tokens, in its order.
void GenerationBatch::note_routes() {
  int64_t token = 0;
  for (Text& text : running_) routes_->append_to(text.out.routes, token++);
  for (Prompt& prompt : prompts_)
    for (size_t i = 0; i < prompt.unread.size(); ++i) routes_->append_to(prompt.routes, token++);
}

GenerationBatch::Row GenerationBatch::free_row() {
  Row row = std::move(free_.front());
  free_.pop_front();
  return row;
}

// Begins texts whose prompts have been read, as far as there are rows. A text that ends with its first token leaves its
// row to the next one.
void GenerationBatch::begin_texts(const OnToken& on_token) {
  for (Prompt& prompt : prompts_)
    while (!prompt.texts.empty() && (prompt.texts.size() == 1 || !free_.empty())) {
      Text text = std::move(prompt.texts.front());
      prompt.texts.pop_front();
      text.out.routes = prompt.routes;
      if (prompt.texts.empty()) {
        text.row = std::move(prompt.row);
      } else {
        text.row = free_row();
        copy_row(stream_, states_, prompt.row.number, text.row.number);
        text.row.reach = prompt.row.reach;
      }
      if (text.request.options.max_tokens == 0)
        end(text, Finish::length);
      else
        accept(text, std::move(text.first), on_token);
      if (!text.ended) running_.push_back(std::move(text));
    }
  std::erase_if(prompts_, [](const Prompt& prompt) { return prompt.texts.empty(); });
}

// The last block's outputs; defined on the last stage of a pipeline.
Residual GenerationBatch::read_layers(const ModelInput& input) {
  if (!divides_layers()) return model_.read(stream_, input, states_);
  const int stages = pipeline_->size(), stage = pipeline_->rank();
  const Shape shape{1, input.tokens.elements() / model_.token_ranks(), model_.config().residual_width()};
  Residual x;
  for (int chunk = 0; chunk < model_.chunks(); ++chunk) {
    Tensor before;
    if (stage > 0 || chunk > 0) {
      before = stream_.empty(shape, model_.config().compute_dtype());
      pipeline_->recv(stream_, before, (stage + stages - 1) % stages);
    }
    x = model_.read(stream_, input, states_, chunk, std::move(before));
    if (has_head() && chunk + 1 == model_.chunks()) break;
    pipeline_->send(stream_, x.x.value(), (stage + 1) % stages);
    x = {};
  }
  return x;
}

// The logits that texts are continued with: of the last token of each running text, and of each prompt once for each of
// its texts; undefined if there are none, or another stage has them.
Tensor GenerationBatch::logits_of_step(const std::vector<kernels::CacheRun>& runs, std::span<const int32_t> tokens) {
  const bool single = tokens.size() == runs.size() && std::ranges::all_of(prompts_, [](const Prompt& prompt) {
                        return prompt.unread.empty() || (prompt.texts.size() == 1 && !prompt.scored());
                      });
  const auto read = [](Prompt& prompt) {
    prompt.past += static_cast<int64_t>(prompt.unread.size());
    for (Text& text : prompt.texts) text.past = prompt.past;
  };
  for (Text& text : running_) ++text.past;
  if (single && recorded_) {
    for (Prompt& prompt : prompts_) read(prompt);
    return recorded_->logits(runs, tokens);
  }
  ModelInput input = step_input(stream_, runs, tokens);
  input.where.hints.batch_invariant = repeatable_;
  const Residual x = read_layers(input);
  std::vector<int32_t> last(running_.size());
  std::iota(last.begin(), last.end(), 0);
  auto end = static_cast<int64_t>(running_.size());
  for (Prompt& prompt : prompts_) {
    if (prompt.unread.empty()) continue;
    if (prompt.scored()) {
      Text& text = prompt.texts.front();
      text.out.prompt = next_.score_prompt(text.request, x, end);
    }
    end += static_cast<int64_t>(prompt.unread.size());
    if (prompt.texts.front().request.options.max_tokens > 0)
      last.insert(last.end(), prompt.texts.size(), static_cast<int32_t>(end) - 1);
    read(prompt);
  }
  return last.empty() || !has_head() ? Tensor() : model_.logits(stream_, x, last);
}

void GenerationBatch::rehearse() {
  assert(stream_.is_meta());
  const kernels::RowProducts by_row(repeatable_);
  for (int64_t texts = 1; texts < size_.rows; texts = next_rehearsed(texts)) {
    std::vector<kernels::CacheRun> runs;
    for (int64_t row = 0; row < texts; ++row) runs.push_back({row, size_.positions - 1, 1});
    const auto shares = static_cast<int64_t>(model_.token_ranks());
    const std::vector<int32_t> tokens(static_cast<size_t>((texts + shares - 1) / shares * shares));
    if (const int64_t spare = std::ssize(tokens) - texts; spare > 0) runs.push_back({size_.rows, 0, spare});
    if (recorded_) {
      recorded_->logits(runs, tokens);
      continue;
    }
    ModelInput input = step_input(stream_, runs, tokens);
    input.where.hints.batch_invariant = repeatable_;
    const Residual x = read_layers(input);
    std::vector<int32_t> all(static_cast<size_t>(texts));
    std::iota(all.begin(), all.end(), 0);
    if (has_head()) model_.whole_logits(stream_, model_.logits(stream_, x, all));
  }
}

// The next token of each text, on every stage of a pipeline, of which the last one has the logits.
std::vector<GeneratedToken> GenerationBatch::choose(const Tensor& own, const std::vector<Text*>& texts) {
  std::vector<GeneratedToken> chosen(texts.size());
  std::vector<ContinuedText> continued;
  for (const Text* text : texts) continued.push_back({text->request, text->sampler, text->seen, text->past});
  if (has_head()) chosen = next_.choose(own, continued);
  if (divides_layers()) share_choice(chosen);
  return chosen;
}

void GenerationBatch::share_choice(std::vector<GeneratedToken>& chosen) {
  const auto n = static_cast<int64_t>(chosen.size());
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  for (const GeneratedToken& token : chosen) {
    tokens.push_back(token.token);
    logprobs.push_back(token.logprob.value_or(0));
  }
  const Tensor ids = stream_.empty({n}, DType::i32), scores = stream_.empty({n}, DType::f32);
  stream_.write(ids, tokens.data());
  stream_.write(scores, logprobs.data());
  for (const Tensor* shared : {&ids, &scores}) pipeline_->broadcast(stream_, *shared, pipeline_->size() - 1);
  stream_.read(tokens.data(), ids);
  stream_.read(logprobs.data(), scores);
  for (size_t i = 0; i < chosen.size(); ++i) {
    chosen[i].token = tokens[i];
    chosen[i].logprob = logprobs[i];
  }
}

// A dry run always generates all tokens.
void GenerationBatch::accept(Text& text, GeneratedToken token, const OnToken& on_token) {
  const GenerateOptions& options = text.request.options;
  if (!stream_.is_meta() && stops(options, token.token)) return end(text, Finish::stop);
  if (text.sampler.changes_logits()) {
    text.seen.all.insert(token.token);
    ++text.seen.generated[token.token];
  }
  text.unread = token.token;
  std::vector<GeneratedToken>& tokens = text.out.tokens;
  tokens.push_back(std::move(token));
  if (on_token && !on_token(text.number, tokens.back())) return end(text, Finish::stopped_by_caller);
  if (static_cast<int64_t>(tokens.size()) == options.max_tokens) end(text, Finish::length);
}

void GenerationBatch::end(Text& text, Finish finish) {
  text.ended = true;
  text.out.finish = finish;
  text.row.tokens = text.request.prompt;
  for (const GeneratedToken& token : text.out.tokens) text.row.tokens.push_back(token.token);
  text.row.tokens.resize(static_cast<size_t>(text.past));  // the last token has not been read
  text.row.routes = text.out.routes;
  text.row.reach = std::max(text.row.reach, text.past);
  free_.push_back(std::move(text.row));
  finished_.emplace_back(text.number, std::move(text.out));
}

int64_t tokens_that_fit(const Transformer& model, int64_t prompt_tokens, int64_t wanted) {
  const auto most = model.most_positions();
  return most ? std::clamp<int64_t>(*most - prompt_tokens, 0, wanted) : wanted;
}

std::vector<Generation> generate(Stream& stream, Transformer& model, std::span<const GenerationRequest> requests,
                                 const GenerationBatch::OnToken& on_token, GenerationMode mode) {
  StateSize size{static_cast<int64_t>(requests.size()), 0};
  for (const GenerationRequest& request : requests) {
    check_request(model, request);  // before memory is allocated
    size.positions = std::max(size.positions, static_cast<int64_t>(request.prompt.size()) + request.options.max_tokens);
  }
  GenerationBatch batch(stream, model, size, mode);
  for (const GenerationRequest& request : requests) batch.admit(request);
  while (!batch.idle()) batch.step(on_token);
  if (stream.is_meta()) batch.rehearse();
  std::vector<Generation> all(requests.size());
  for (auto& [number, generation] : batch.take_finished()) all[number] = std::move(generation);
  return all;
}

std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token,
                              GenerationMode mode) {
  const GenerationRequest request{{prompt.begin(), prompt.end()}, options};
  const auto tell = [&](size_t, const GeneratedToken& token) {
    if (on_token) on_token(token.token);
    return true;
  };
  const std::vector<Generation> generations = generate(stream, model, std::span(&request, 1), tell, mode);
  std::vector<int32_t> text;
  for (const GeneratedToken& token : generations[0].tokens) text.push_back(token.token);
  return text;
}

}  // namespace witan
