#include "witan/data/prepare/tokenize_corpus.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/prepare/encoding_line.h"

namespace witan {
namespace {

constexpr uint64_t kBatchBytes = 1 << 20;

static_assert(static_cast<float>(PairPlace::chosen) == kChosenMark &&
              static_cast<float>(PairPlace::rejected) == kRejectedMark);

// The position in the corpus at which a batch ends.
struct BatchEnd {
  std::shared_ptr<const CorpusStart> start;
  int64_t visited = 0;  // documents since `start`
};

// Gathers documents into batches, each of one source.
class Gatherer {
 public:
  // `skip`: documents at the beginning that are not wanted.
  Gatherer(const PutBatch& put, int64_t skip, std::atomic<uint64_t>& read_bytes)
      : put_(put), skip_(skip), read_bytes_(read_bytes) {}

  void begin_source(const CorpusStart& start) {
    flush();
    start_ = std::make_shared<const CorpusStart>(start);
    visited_ = 0;
  }

  void add(const Document& document) {
    ++visited_;
    read_bytes_.store(document.source_bytes, std::memory_order_relaxed);
    if (skip_ > 0) {
      --skip_;
      return;
    }
    batch_.documents.push_back(document.conversation());
    batch_.text_bytes += document.text.size();
    batch_.source_bytes = std::max(batch_.source_bytes, document.source_bytes);
    constexpr size_t kMostDocuments = 4096;  // of empty ones, too
    if (batch_.text_bytes >= kBatchBytes || batch_.documents.size() >= kMostDocuments) flush();
  }

  void flush() {
    if (batch_.documents.empty()) return;
    const uint64_t read = batch_.source_bytes;
    batch_.tag = std::make_shared<const BatchEnd>(BatchEnd{start_, visited_});
    put_(std::exchange(batch_, {}));
    batch_.source_bytes = read;
  }

 private:
  const PutBatch& put_;
  int64_t skip_;
  std::atomic<uint64_t>& read_bytes_;
  TextBatch batch_;
  std::shared_ptr<const CorpusStart> start_;
  int64_t visited_ = 0;
};

fs::path loss_prefix(const fs::path& prefix) {
  return prefix.string() + kLossSuffix;
}

}  // namespace

CorpusTokenizer::CorpusTokenizer(fs::path prefix, const nlohmann::json& key, TokenizeOptions options)
    : prefix_(std::move(prefix)),
      options_(std::move(options)),
      journal_(prefix_, key),
      resumed_(unfinished()),
      has_piece_(resumed_.has_value()) {
  if (!resumed_ && journal_.exists() && options_.dropping) options_.dropping();
  if (!resumed_) journal_.remove();
  shards_.emplace(prefix_, options_.vocab_size, has_piece_);
  if (options_.with_loss) loss_.emplace(loss_prefix(prefix_), kLossMarks, has_piece_);
  if (!resumed_) return;
  shards_->cut(resumed_->documents, resumed_->tokens);
  if (loss_) loss_->cut(resumed_->documents, resumed_->tokens);
}

CorpusTokenizer::~CorpusTokenizer() {
  if (has_piece_ && !finished_) return;
  GrowingShards::discard(prefix_);
  GrowingShards::discard(loss_prefix(prefix_));
}

// A journal whose shards are not there is of no use: they were removed first, and its removal failed or was undone by a
// power failure.
std::optional<PieceEnd> CorpusTokenizer::unfinished() {
  std::optional<PieceEnd> found = journal_.find();
  if (!found) return found;
  const bool whole =
      GrowingShards::hold(prefix_, options_.vocab_size, found->documents, found->tokens) &&
      (!options_.with_loss || GrowingShards::hold(loss_prefix(prefix_), kLossMarks, found->documents, found->tokens));
  if (!whole) found.reset();
  return found;
}

void CorpusTokenizer::write_piece(PieceEnd end) {
  shards_->sync();
  if (loss_) loss_->sync();
  end.documents = shards_->documents();
  end.tokens = shards_->tokens();
  journal_.write(end);
  has_piece_ = true;
}

CorpusStatistics CorpusTokenizer::run(const std::vector<Source>& sources,
                                      const std::function<void(const TokenizeProgress&)>& progress) {
  const CorpusStatistics statistics =
      resumed_ && resumed_->statistics ? *resumed_->statistics : tokenize(sources, progress);
  if (options_.publishing) options_.publishing();
  if (loss_) loss_->publish();
  shards_->publish();
  return statistics;
}

CorpusStatistics CorpusTokenizer::tokenize(const std::vector<Source>& sources,
                                           const std::function<void(const TokenizeProgress&)>& progress) {
  const PieceEnd begin = resumed_.value_or(PieceEnd{});
  CorpusStatistics statistics;  // the reader's, until it has ended
  std::atomic<uint64_t> read_bytes{0};
  TokenizeProgress at;
  at.resumed_tokens = at.tokens = shards_->tokens();
  at.documents = shards_->documents();
  uint64_t since_piece = 0;
  const auto report = [&] {
    at.read_bytes = read_bytes.load(std::memory_order_relaxed);
    if (progress) progress(at);
  };
  EncodingLine line;
  line.read = [&](const PutBatch& put) {
    Gatherer gatherer(put, begin.visited, read_bytes);
    statistics = read_corpus(
        sources, options_.corpus, begin.start, [&](const CorpusStart& start) { gatherer.begin_source(start); },
        [&](const Document& document) { gatherer.add(document); });
    gatherer.flush();
  };
  line.encode = options_.encode;
  line.wait = report;
  std::vector<int32_t> marks;
  line.take = [&](const EncodedBatch& batch) {
    for (const EncodedConversation& document : batch.documents) {
      shards_->add(document.tokens);
      if (!loss_) continue;
      marks.resize(document.loss.size());
      std::ranges::transform(document.loss, marks.begin(), mark_of_weight);
      loss_->add(marks);
    }
    if (at.text_bytes == 0) at.resumed_bytes = begin.visited > 0 || begin.start.source > 0 ? batch.source_bytes : 0;
    at.source_bytes = batch.source_bytes;
    at.text_bytes += batch.text_bytes;
    at.documents = shards_->documents();
    at.tokens = shards_->tokens();
    since_piece += batch.text_bytes;
    if (since_piece >= options_.piece_bytes) {
      const auto& end = *static_cast<const BatchEnd*>(batch.tag.get());
      write_piece({*end.start, end.visited});
      since_piece = 0;
    }
    report();
  };
  run_encoding_line(line, options_.threads);
  // Recorded for short texts too, since their shards get their names before the manifest does.
  PieceEnd end;
  end.start.source = sources.size();
  end.statistics = statistics;
  write_piece(std::move(end));
  return statistics;
}

void CorpusTokenizer::remove_left_overs(const fs::path& prefix) {
  GrowingShards::discard(prefix);
  GrowingShards::discard(loss_prefix(prefix));
  std::error_code absent;
  for (const char* suffix : {".partial.json", ".partial.quarantine.jsonl", ".partial.lock"})
    fs::remove(prefix.string() + suffix, absent);
}

void CorpusTokenizer::finish() {
  finished_ = true;
  journal_.remove();
}

}  // namespace witan
