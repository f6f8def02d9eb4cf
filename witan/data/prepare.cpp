#include "witan/data/prepare.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/threads.h"
#include "witan/data/conversation_dataset.h"
#include "witan/data/indexed_dataset.h"
#include "witan/data/shard_manifest.h"

namespace witan {
namespace {

// Documents wait here until there is enough work for all threads.
class EncodingQueue {
 public:
  // `loss`: the tokens of conversations that are learnt from; null for plain text.
  EncodingQueue(const TextEncoder& encoder, IndexedWriter& writer, IndexedWriter* loss, int threads)
      : encoder_(encoder), writer_(writer), loss_(loss), pool_(std::max(threads, 1)) {}

  // True when the queue has been written out.
  bool add(const Document& document) {
    waiting_.push_back({std::string(document.text), {document.answers.begin(), document.answers.end()}});
    waiting_bytes_ += document.text.size();
    if (waiting_bytes_ < kBytes) return false;
    flush();
    return true;
  }

  void flush() {
    std::vector<EncodedConversation> encoded(waiting_.size());
    pool_.run(static_cast<int64_t>(waiting_.size()),
              [&](int64_t i) { encoded[static_cast<size_t>(i)] = encode(waiting_[static_cast<size_t>(i)]); });
    for (const auto& document : encoded) {
      writer_.add(document.tokens);
      if (loss_) loss_->add(document.loss);
    }
    waiting_.clear();
    waiting_bytes_ = 0;
  }

 private:
  static constexpr size_t kBytes = 4 << 20;

  EncodedConversation encode(const Conversation& document) const {
    if (loss_) return encode_conversation(document, encoder_.encode_with_special);
    EncodedConversation encoded;
    encoder_.encode(document.text, encoded.tokens);
    if (encoder_.end_of_text) encoded.tokens.push_back(*encoder_.end_of_text);
    return encoded;
  }

  const TextEncoder& encoder_;
  IndexedWriter& writer_;
  IndexedWriter* loss_;
  ThreadPool pool_;
  std::vector<Conversation> waiting_;  // of plain text without answers
  size_t waiting_bytes_ = 0;
};

CorpusStatistics write_shards(const std::vector<Source>& sources, const TextEncoder& encoder,
                              const PrepareOptions& options, IndexedWriter& writer, IndexedWriter* loss,
                              const std::function<void(const PrepareProgress&)>& progress) {
  uint64_t total = 0;
  for (const Source& source : sources) total += source.bytes;
  EncodingQueue queue(encoder, writer, loss, options.threads);
  const auto report = [&](uint64_t done) {
    if (progress) progress({done, total, writer.documents(), writer.tokens()});
  };
  const CorpusStatistics statistics = read_corpus(sources, options.corpus, [&](const Document& document) {
    if (queue.add(document)) report(document.source_bytes);
  });
  queue.flush();
  report(total);
  return statistics;
}

PartSize measure(const TokenDataset& part, const std::vector<int64_t>& bytes_of) {
  constexpr int64_t kPiece = 1 << 20;
  PartSize size{part.documents(), part.tokens(), 0};
  std::vector<int32_t> tokens;
  for (int64_t d = 0; d < part.documents(); ++d)
    for (int64_t begin = 0; begin < part.length(d); begin += kPiece) {
      tokens.resize(static_cast<size_t>(std::min(kPiece, part.length(d) - begin)));
      part.read(d, begin, tokens);
      for (const int32_t token : tokens) {
        require<DataError>(static_cast<size_t>(token) < bytes_of.size(), part.name(), ": token id ", token,
                           " is outside the vocabulary of ", bytes_of.size());
        size.bytes += bytes_of[static_cast<size_t>(token)];
      }
    }
  return size;
}

void measure_parts(const TextEncoder& encoder, const SplitOptions& options, PreparedDataset& prepared) {
  std::vector<int64_t> bytes_of(static_cast<size_t>(encoder.vocab_size));
  for (size_t id = 0; id < bytes_of.size(); ++id) bytes_of[id] = encoder.token_bytes(static_cast<int32_t>(id));
  const auto tokens = open_tokens(prepared.prefix);
  SplitOptions possible = options;  // shards of less text than that are shards too
  possible.least_tokens = std::clamp<int64_t>(tokens->tokens() / 2, 1, options.least_tokens);
  const Split split = split_documents(tokens, possible);
  prepared.train = measure(*split.train, bytes_of);
  prepared.held_out = measure(*split.held_out, bytes_of);
}

}  // namespace

PreparedDataset prepare_dataset(const std::vector<Source>& sources, const TextEncoder& encoder, const fs::path& prefix,
                                PrepareOptions options, const std::function<void(const PrepareProgress&)>& progress) {
  if (options.corpus.quarantine.empty()) options.corpus.quarantine = prefix.string() + ".quarantine.jsonl";
  ShardManifest manifest(prefix, shard_key(sources, encoder, options.corpus));
  PreparedDataset prepared{prefix, true, {}, 0, {}, {}};
  const std::string loss_prefix = prefix.string() + kLossSuffix;
  const auto found = manifest.find(options.split, prepared);
  if (found == ShardManifest::Found::everything) return prepared;
  if (found == ShardManifest::Found::nothing) {
    manifest.remove();
    std::error_code absent;
    fs::remove(loss_prefix + ".idx", absent);  // of conversations that lay here
    IndexedWriter writer(prefix, encoder.vocab_size);
    std::optional<IndexedWriter> loss;
    if (options.corpus.conversations) loss.emplace(loss_prefix, 2);
    prepared.corpus = write_shards(sources, encoder, options, writer, loss ? &*loss : nullptr, progress);
    if (loss) loss->finish();
    writer.finish();
    prepared.reused = false;
    prepared.tokens = writer.tokens();
  }
  measure_parts(encoder, options.split, prepared);
  manifest.write(options.split, prepared);
  return prepared;
}

}  // namespace witan
