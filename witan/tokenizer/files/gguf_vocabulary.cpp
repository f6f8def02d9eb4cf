#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/formats/gguf.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/models/bpe.h"
#include "witan/tokenizer/models/sentencepiece.h"
#include "witan/tokenizer/text/byte_alphabet.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {
namespace {

constexpr std::string_view kGgmlModel = "tokenizer.ggml.model", kPre = "tokenizer.ggml.pre",
                           kTokens = "tokenizer.ggml.tokens", kScores = "tokenizer.ggml.scores",
                           kTokenTypes = "tokenizer.ggml.token_type", kGgmlMerges = "tokenizer.ggml.merges",
                           kUnknownId = "tokenizer.ggml.unknown_token_id",
                           kSpacePrefix = "tokenizer.ggml.add_space_prefix",
                           kRemoveSpaces = "tokenizer.ggml.remove_extra_whitespaces",
                           kCharsmap = "tokenizer.ggml.precompiled_charsmap";

using PieceType = SentencePieceModel::Type;  // tokenizer.ggml.token_type uses the same numbers

// The meaning of a name in tokenizer.ggml.pre.
struct PreTokenizer {
  std::string_view name;
  std::vector<SplitStep> (*patterns)();
  bool ignore_merges = false;
  bool nfc = false;  // llama.cpp omits it, but the models' own tokenizers have it
};

template <const std::string_view& kPattern>
std::vector<SplitStep> one_pattern() {
  return {std::string(kPattern)};
}
std::vector<SplitStep> digits_and_gpt2() {
  return {std::string(kNumberPattern), std::string(kGpt2Pattern)};
}
std::vector<SplitStep> deepseek3() {
  return {std::string(kNumberTripletPattern), std::string(kDeepSeekCjkPattern), std::string(kDeepSeekPattern)};
}
constexpr const char* kCjkRun = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";
std::vector<SplitStep> deepseek_coder() {
  return {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kCjkRun, std::string(kNumberPattern)};
}
// Letters of scripts with upper and lower case. Written as escapes, since normalising this source would change some.
constexpr const char* kCasedWord =
    "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF"
    "\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5"
    "\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-"
    "\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D"
    "\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-"
    "\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113"
    "\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149"
    "\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B"
    "\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-"
    "\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0"
    "-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+";
std::vector<SplitStep> deepseek_llm() {
  return {"[\r\n]", kCasedWord, "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
          "\\s+$",  kCjkRun,    std::string(kNumberRunPattern)};
}
std::vector<SplitStep> falcon() {
  return {R"([\p{P}\$\+<=>\^~\|`]+)", std::string(kGpt2Pattern), "[0-9][0-9][0-9]"};
}
// llama.cpp's default for files that name none.
std::vector<SplitStep> llama_cpp_default() {
  return {R"([\p{P}\$\+<=>\^~\|]+)", std::string(kGpt2Pattern), std::string(kNumberRunPattern), "[0-9][0-9][0-9]"};
}

// Writing uses the first entry that fits.
const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> all = {
      {"gpt-2", one_pattern<kGpt2Pattern>},
      {"llama-bpe", one_pattern<kLlama3Pattern>, true},
      {"qwen2", one_pattern<kQwen2Pattern>, false, true},
      {"qwen35", one_pattern<kQwen35Pattern>, false, true},
      {"gpt-4o", one_pattern<kO200kPattern>},
      {"tekken", one_pattern<kTekkenPattern>, true},
      {"deepseek-v3", deepseek3},
      {"deepseek-llm", deepseek_llm},
      {"deepseek-coder", deepseek_coder},
      {"kimi-k2", one_pattern<kKimiPattern>},
      {"falcon", falcon},
      {"starcoder", digits_and_gpt2},
      {"refact", digits_and_gpt2},
      {"command-r", digits_and_gpt2},
      {"smollm", digits_and_gpt2},
      {"codeshell", digits_and_gpt2},
      {"exaone", digits_and_gpt2},
      {"minerva-7b", digits_and_gpt2},
      {"dbrx", one_pattern<kLlama3Pattern>},
      {"smaug-bpe", one_pattern<kLlama3Pattern>},
      {"glm4", one_pattern<kLlama3Pattern>},
      {"chatglm-bpe", one_pattern<kLlama3Pattern>},
      {"llama3", one_pattern<kLlama3Pattern>, true},
      {"llama-v3", one_pattern<kLlama3Pattern>, true},
      {"falcon3", one_pattern<kLlama3Pattern>, true},
      {"pixtral", one_pattern<kLlama3Pattern>, true},
      {"stablelm2", one_pattern<kQwen2Pattern>},
      {"megrez", one_pattern<kQwen2Pattern>},
      {"deepseek-r1-qwen", one_pattern<kQwen2Pattern>, false, true},
      {"llama4", one_pattern<kO200kPattern>},
      {"mpt", one_pattern<kGpt2Pattern>},
      {"olmo", one_pattern<kGpt2Pattern>},
      {"jais", one_pattern<kGpt2Pattern>},
      {"trillion", one_pattern<kGpt2Pattern>},
      {"phi-2", one_pattern<kGpt2Pattern>},
      {"gigachat", one_pattern<kGpt2Pattern>},
      {"roberta-bpe", one_pattern<kGpt2Pattern>},
      {"jina-es", one_pattern<kGpt2Pattern>},
      {"jina-de", one_pattern<kGpt2Pattern>},
      {"jina-v1-en", one_pattern<kGpt2Pattern>},
      {"jina-v2-es", one_pattern<kGpt2Pattern>},
      {"jina-v2-de", one_pattern<kGpt2Pattern>},
      {"jina-v2-code", one_pattern<kGpt2Pattern>},
      {"default", llama_cpp_default},
  };
  return all;
}

std::vector<NormalizerStep> normalizers_of(const PreTokenizer& pre) {
  if (!pre.nfc) return {};
  return {NormalizerStep{}};
}

// Tokens and their types; normal if the file gives no types.
struct GgufTokens {
  std::vector<std::string> texts;
  std::vector<PieceType> types;

  explicit GgufTokens(const GgufMetadata& metadata) : texts(metadata.texts(kTokens)) {
    const std::string& where = metadata.source();
    require<DataError>(!texts.empty(), where, ": ", kTokens,
                       " is missing, so this file has no vocabulary: give the tokenizer's own file");
    const auto numbers = metadata.integers(kTokenTypes);
    require<CorruptionError>(numbers.empty() || numbers.size() == texts.size(), where, ": ", kTokenTypes, " has ",
                             numbers.size(), " entries, ", kTokens, " has ", texts.size());
    types.assign(texts.size(), PieceType::normal);
    for (size_t id = 0; id < numbers.size(); ++id) {
      require<CorruptionError>(numbers[id] >= 0 && numbers[id] <= 6, where, ": ", kTokenTypes, "[", id,
                               "] = ", numbers[id], " is not a token type (0 to 6): download the file again");
      if (numbers[id] > 0) types[id] = static_cast<PieceType>(numbers[id]);  // 0: undefined
    }
  }
};

const PreTokenizer& named_pre_tokenizer(const GgufMetadata& metadata) {
  const std::string name = metadata.text(kPre).value_or("default");
  const auto& all = pre_tokenizers();
  const auto found = std::ranges::find(all, name, &PreTokenizer::name);
  if (found != all.end()) return *found;
  std::string known;
  for (const PreTokenizer& one : all) known += cat(known.empty() ? "" : ", ", one.name);
  throw DataError(cat(metadata.source(), ": ", kPre, " = ", clipped(name),
                      ": this pre-tokenizer is not supported; supported: ", known,
                      ". Give the tokenizer.json of the original model instead"));
}

TokenizerSpec bpe_of_bytes(const GgufMetadata& metadata) {
  const PreTokenizer& pre = named_pre_tokenizer(metadata);
  GgufTokens tokens(metadata);
  TokenizerSpec spec;
  spec.patterns = pre.patterns();
  spec.normalizers = normalizers_of(pre);
  spec.ignore_merges = pre.ignore_merges;
  spec.prefix_space = metadata.flag(kSpacePrefix).value_or(false);
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const std::string& text = tokens.texts[id];
    const PieceType type = tokens.types[id];
    require<CorruptionError>(ids.emplace(text, static_cast<int32_t>(id)).second, metadata.source(), ": ", kTokens,
                             " contains \"", clipped(text), "\" twice: download the file again");
    const bool is_added = type == PieceType::control || type == PieceType::user_defined || type == PieceType::unknown;
    std::optional<std::string> bytes;
    if (type == PieceType::normal) bytes = from_byte_alphabet(text);
    spec.tokens.push_back(bytes.value_or(text));
    if (is_added && !text.empty())
      spec.added.push_back({static_cast<int32_t>(id), text, type != PieceType::user_defined});
  }
  for (const std::string& merge : metadata.texts(kGgmlMerges)) {
    const size_t space = merge.find(' ', 1);
    const auto found = [&](std::string_view token) {
      const auto id = ids.find(token);
      require<CorruptionError>(id != ids.end(), metadata.source(), ": ", kGgmlMerges, " needs the token \"",
                               clipped(token), "\", which ", kTokens, " lacks");
      return id->second;
    };
    require<CorruptionError>(space != std::string::npos, metadata.source(), ": ", kGgmlMerges, " contains \"",
                             clipped(merge), "\", which is not a pair of tokens: download the file again");
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    spec.merges.push_back({found(left), found(right), found(left + right)});
  }
  return spec;
}

// A SentencePiece model in protobuf's wire format.
class ModelProto {
 public:
  void put(uint32_t field, std::string_view bytes) {
    varint(field << 3 | 2);
    varint(bytes.size());
    out_ += bytes;
  }
  void put(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  void put(uint32_t field, float value) {
    varint(field << 3 | 5);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  const std::string& bytes() const { return out_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }

  std::string out_;
};

// Adapts the types to the rules of SentencePiece's reader: one unknown piece, and no unused ones.
void adapt_types(const GgufMetadata& metadata, GgufTokens& tokens) {
  const auto unknown = static_cast<size_t>(metadata.integer(kUnknownId).value_or(0));
  require<CorruptionError>(unknown < tokens.types.size(), metadata.source(), ": ", kUnknownId, " = ", unknown,
                           " is not a token of the vocabulary");
  for (PieceType& type : tokens.types)
    if (type == PieceType::unused || type == PieceType::unknown) type = PieceType::control;
  tokens.types[unknown] = PieceType::unknown;
}

TokenizerSpec sentencepiece(const GgufMetadata& metadata, SentencePieceModel::Algorithm algorithm) {
  GgufTokens tokens(metadata);
  adapt_types(metadata, tokens);
  const auto scores = metadata.numbers(kScores);
  require<CorruptionError>(scores.size() == tokens.texts.size(), metadata.source(), ": ", kScores, " has ",
                           scores.size(), " entries, ", kTokens, " has ", tokens.texts.size());
  ModelProto model;
  bool byte_fallback = false;
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    ModelProto piece;
    piece.put(1, tokens.texts[id]);
    piece.put(2, static_cast<float>(scores[id]));
    piece.put(3, static_cast<uint64_t>(tokens.types[id]));
    model.put(1, piece.bytes());
    byte_fallback |= tokens.types[id] == PieceType::byte;
  }
  ModelProto trainer, normalizer;
  trainer.put(3, static_cast<uint64_t>(algorithm));
  trainer.put(35, uint64_t{byte_fallback});
  model.put(2, trainer.bytes());
  std::string charsmap;
  for (const int64_t byte : metadata.integers(kCharsmap)) charsmap += static_cast<char>(byte);
  if (!charsmap.empty()) normalizer.put(2, charsmap);
  normalizer.put(3, uint64_t{metadata.flag(kSpacePrefix).value_or(true)});
  normalizer.put(4, uint64_t{metadata.flag(kRemoveSpaces).value_or(false)});
  model.put(3, normalizer.bytes());
  return sentencepiece_spec(model.bytes(), metadata.source());
}

GgufValue array_of(GgufType type) {
  return {.type = type, .array = true};
}

// Whether merging the bytes of each token gives that token.
bool merges_produce_every_token(const TokenizerSpec& spec) {
  TokenizerSpec merging = spec;
  merging.ignore_merges = false;
  const Bpe bpe(merging);
  std::vector<bool> is_added(spec.tokens.size());
  for (const AddedToken& token : spec.added) is_added[static_cast<size_t>(token.id)] = true;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.tokens[id].empty() || is_added[id]) continue;
    std::vector<int32_t> ids;
    bpe.encode_word(spec.tokens[id], ids);
    if (ids != std::vector{static_cast<int32_t>(id)}) return false;
  }
  return true;
}

std::string_view pre_tokenizer_of(const TokenizerSpec& spec) {
  for (const PreTokenizer& pre : pre_tokenizers())
    if (pre.ignore_merges == spec.ignore_merges && pre.patterns() == spec.patterns &&
        normalizers_of(pre) == spec.normalizers)
      return pre.name;
  for (const PreTokenizer& pre : pre_tokenizers())
    if (pre.patterns() == spec.patterns && normalizers_of(pre) == spec.normalizers && merges_produce_every_token(spec))
      return pre.name;
  throw DataError(cat("llama.cpp has no pre-tokenizer that splits text as this tokenizer does (",
                      spec.patterns.empty() ? "it does not split" : clipped(spec.patterns.front().pattern),
                      spec.normalizers.empty() ? "" : ", after a normalizer",
                      "), so a GGUF file cannot express it: export with --format hf"));
}

void refuse_added_flags(const AddedToken& token) {
  require<DataError>(!token.single_word && !token.lstrip && !token.rstrip, "the added token \"", clipped(token.text),
                     "\" has lstrip, rstrip or single_word set, which a GGUF file cannot express: export with "
                     "--format hf");
}

void write_bpe_of_bytes(const TokenizerSpec& spec, GgufMetadata& metadata, GgufValue& tokens, GgufValue& types) {
  require<DataError>(
      spec.merge_ranks.empty(),
      "several merges of the tokenizer have equal ranks, as tiktoken's do, but a GGUF file lists merges in a strict "
      "order: use the model's tokenizer.json");
  metadata.put_text(std::string(kGgmlModel), "gpt2");
  metadata.put_text(std::string(kPre), std::string(pre_tokenizer_of(spec)));
  if (spec.prefix_space) metadata.put_flag(std::string(kSpacePrefix), true);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const bool used = !spec.tokens[id].empty();
    tokens.texts.push_back(used ? to_byte_alphabet(spec.tokens[id]) : cat("[PAD", id, "]"));
    types.integers.push_back(static_cast<int64_t>(used ? PieceType::normal : PieceType::unused));
  }
  GgufValue merges = array_of(GgufType::text);
  for (const Merge& merge : spec.merges)
    merges.texts.push_back(
        cat(tokens.texts[static_cast<size_t>(merge.left)], " ", tokens.texts[static_cast<size_t>(merge.right)]));
  metadata.put(std::string(kGgmlMerges), std::move(merges));
  for (const AddedToken& token : spec.added) {
    refuse_added_flags(token);
    const auto id = static_cast<size_t>(token.id);
    tokens.texts[id] = token.text;
    types.integers[id] = static_cast<int64_t>(token.special ? PieceType::control : PieceType::user_defined);
  }
}

void write_sentencepiece(const TokenizerSpec& spec, GgufMetadata& metadata, GgufValue& tokens, GgufValue& types,
                         GgufValue& scores) {
  const SentencePieceModel model = parse_sentencepiece_model(spec.sentencepiece, "the tokenizer");
  const bool bpe = model.algorithm == SentencePieceModel::Algorithm::bpe;
  require<DataError>((!bpe || model.charsmap.empty()) && !model.whitespace_as_suffix && model.escape_whitespaces,
                     "the SentencePiece model normalises text (or writes spaces) in a way that llama.cpp does not "
                     "support: export with --format hf");
  metadata.put_text(std::string(kGgmlModel), bpe ? "llama" : "t5");
  metadata.put_text(std::string(kPre), "default");
  metadata.put_flag(std::string(kSpacePrefix), model.add_dummy_prefix);
  metadata.put_flag(std::string(kRemoveSpaces), model.remove_extra_whitespaces);
  metadata.put_u32(std::string(kUnknownId), model.unk);
  if (!model.charsmap.empty()) {
    GgufValue charsmap = array_of(GgufType::u8);
    for (const char byte : model.charsmap) charsmap.integers.push_back(static_cast<unsigned char>(byte));
    metadata.put(std::string(kCharsmap), std::move(charsmap));
  }
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    tokens.texts.push_back(piece.text);
    types.integers.push_back(static_cast<int64_t>(piece.type));
    scores.numbers.push_back(static_cast<double>(piece.score));
  }
}

// `begins`, `ends`: llama.cpp's defaults if the file does not set them. A token that the file does not name is not
// added.
TokenizerSpec with_tokens_around(TokenizerSpec spec, const GgufMetadata& metadata, bool begins, bool ends) {
  const auto token = [&](const char* flag, bool otherwise, const char* key) -> std::optional<int32_t> {
    const auto id = metadata.integer(key);
    if (!metadata.flag(flag).value_or(otherwise) || !id || *id < 0 || *id >= std::ssize(spec.tokens))
      return std::nullopt;
    return spec.tokens[static_cast<size_t>(*id)].empty() ? std::nullopt : std::optional(static_cast<int32_t>(*id));
  };
  put_around_texts(token("tokenizer.ggml.add_bos_token", begins, "tokenizer.ggml.bos_token_id"),
                   token("tokenizer.ggml.add_eos_token", ends, "tokenizer.ggml.eos_token_id"), spec);
  return spec;
}

}  // namespace

TokenizerSpec parse_gguf_vocabulary(const GgufMetadata& metadata) {
  const std::string model = metadata.text(kGgmlModel).value_or("");
  if (model == "gpt2")
    return with_tokens_around(bpe_of_bytes(metadata), metadata, metadata.text(kPre).value_or("").starts_with("llama"),
                              false);
  if (model == "llama")
    return with_tokens_around(sentencepiece(metadata, SentencePieceModel::Algorithm::bpe), metadata, true, false);
  if (model == "t5")
    return with_tokens_around(sentencepiece(metadata, SentencePieceModel::Algorithm::unigram), metadata, false, true);
  require<DataError>(!model.empty() && model != "no_vocab" && model != "none", metadata.source(),
                     ": this GGUF file has no vocabulary (", kGgmlModel, "): give the tokenizer's own file");
  throw DataError(cat(metadata.source(), ": ", kGgmlModel, " = ", clipped(model),
                      " is not supported (gpt2, llama and t5 are): give the tokenizer's own file"));
}

void write_gguf_vocabulary(const TokenizerSpec& spec, int64_t vocab_size, GgufMetadata& metadata) {
  GgufValue tokens = array_of(GgufType::text), types = array_of(GgufType::i32), scores = array_of(GgufType::f32);
  if (!spec.sentencepiece.empty())
    write_sentencepiece(spec, metadata, tokens, types, scores);
  else if (spec.byte_level)
    write_bpe_of_bytes(spec, metadata, tokens, types);
  else
    throw DataError(
        "the character-level tokenizer comes from a tokenizer.json, which has no scores of merges, but a GGUF file "
        "needs "
        "them: import the model again with its tokenizer.model beside it");
  const auto held = static_cast<int64_t>(tokens.texts.size());
  require<DataError>(held <= vocab_size, "the tokenizer has ", held, " tokens, the model ", vocab_size,
                     ": they belong to different models");
  for (int64_t id = held; id < vocab_size; ++id) {
    tokens.texts.push_back(cat("[PAD", id, "]"));
    types.integers.push_back(static_cast<int64_t>(PieceType::unused));
    if (!scores.numbers.empty()) scores.numbers.push_back(-1000);
  }
  metadata.put(std::string(kTokens), std::move(tokens));
  metadata.put(std::string(kTokenTypes), std::move(types));
  if (!scores.numbers.empty()) metadata.put(std::string(kScores), std::move(scores));
}

}  // namespace witan
