#include "witan/data/prepare.h"

#include <algorithm>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/threads.h"
#include "witan/data/indexed_dataset.h"
#include "witan/data/shard_manifest.h"

namespace witan {
namespace {

// Documents wait here until there is enough work for all threads.
class EncodingQueue {
 public:
  EncodingQueue(const TextEncoder& encoder, IndexedWriter& writer, int threads)
      : encoder_(encoder), writer_(writer), pool_(std::max(threads, 1)) {}

  // True when the queue has been written out.
  bool add(std::string_view text) {
    texts_.emplace_back(text);
    waiting_bytes_ += text.size();
    if (waiting_bytes_ < kBytes) return false;
    flush();
    return true;
  }

  void flush() {
    std::vector<std::vector<int32_t>> tokens(texts_.size());
    pool_.run(static_cast<int64_t>(texts_.size()), [&](int64_t i) {
      auto& out = tokens[static_cast<size_t>(i)];
      encoder_.encode(texts_[static_cast<size_t>(i)], out);
      if (encoder_.end_of_text) out.push_back(*encoder_.end_of_text);
    });
    for (const auto& document : tokens) writer_.add(document);
    texts_.clear();
    waiting_bytes_ = 0;
  }

 private:
  static constexpr size_t kBytes = 4 << 20;

  const TextEncoder& encoder_;
  IndexedWriter& writer_;
  ThreadPool pool_;
  std::vector<std::string> texts_;
  size_t waiting_bytes_ = 0;
};

CorpusStatistics write_shards(const std::vector<Source>& sources, const TextEncoder& encoder,
                              const PrepareOptions& options, IndexedWriter& writer,
                              const std::function<void(const PrepareProgress&)>& progress) {
  uint64_t total = 0;
  for (const Source& source : sources) total += source.bytes;
  EncodingQueue queue(encoder, writer, options.threads);
  const auto report = [&](uint64_t done) {
    if (progress) progress({done, total, writer.documents(), writer.tokens()});
  };
  const CorpusStatistics statistics = read_corpus(sources, options.corpus, [&](const Document& document) {
    if (queue.add(document.text)) report(document.source_bytes);
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
  const auto found = manifest.find(options.split, prepared);
  if (found == ShardManifest::Found::everything) return prepared;
  if (found == ShardManifest::Found::nothing) {
    manifest.remove();
    IndexedWriter writer(prefix, encoder.vocab_size);
    prepared.corpus = write_shards(sources, encoder, options, writer, progress);
    writer.finish();
    prepared.reused = false;
    prepared.tokens = writer.tokens();
  }
  measure_parts(encoder, options.split, prepared);
  manifest.write(options.split, prepared);
  return prepared;
}

}  // namespace witan
