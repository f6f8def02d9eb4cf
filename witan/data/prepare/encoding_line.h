// Encodes a stream of documents on all cores: one thread reads, several encode, and the caller gets the results in the
// order of the text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "witan/data/corpus/conversations.h"

namespace witan {

// Documents that follow one another in one source.
struct TextBatch {
  std::vector<Conversation> documents;  // of plain text without answers
  uint64_t text_bytes = 0;
  uint64_t source_bytes = 0;        // read so far, all sources together
  std::shared_ptr<const void> tag;  // the reader's, passed on
};

struct EncodedBatch {
  std::vector<EncodedConversation> documents;
  uint64_t text_bytes = 0, source_bytes = 0;
  std::shared_ptr<const void> tag;
};

// The thread's own view of what it feeds.
using PutBatch = std::function<void(TextBatch)>;

struct EncodingLine {
  std::function<void(const PutBatch& put)> read;                   // in a thread of its own; returns at the end
  std::function<EncodedConversation(const Conversation&)> encode;  // in several threads
  std::function<void(const EncodedBatch&)> take;                   // in the caller's, in the order of put()
  std::function<void()> wait = {};  // in the caller's, about four times a second while nothing is ready
};

// Runs until everything that was put has been taken. At most 2 * threads + 2 batches are in memory. The first exception
// of any function, in the order of the text, ends all of them and is rethrown.
void run_encoding_line(const EncodingLine& line, int threads);

}  // namespace witan
