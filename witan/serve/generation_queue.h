// The queue of sequences to generate, and the thread that runs the model: sequences join the running batch as soon as
// there is room, and leave it when they end (continuous batching).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "witan/base/threads/mutex.h"
#include "witan/generate/request.h"

namespace witan::serve {

// Generates sequences in a batch; the interface of generate/generation_batch.h.
class BatchEngine {
 public:
  using OnToken = std::function<bool(size_t number, const GeneratedToken& token)>;

  virtual ~BatchEngine() = default;
  virtual bool has_room() const = 0;
  virtual size_t admit(GenerationRequest request) = 0;
  virtual void step(const OnToken& on_token) = 0;
  virtual bool idle() const = 0;
  virtual std::vector<std::pair<size_t, Generation>> take_finished() = 0;
};
using MakeEngine = std::function<std::unique_ptr<BatchEngine>()>;

// One sequence to generate, and its recipient. All methods are called on the queue's thread, end() or fail() last.
class QueuedSequence {
 public:
  virtual ~QueuedSequence() = default;
  virtual const GenerationRequest& request() const = 0;
  // Checked before it is computed: an unwanted sequence is dropped silently.
  virtual bool wanted() const = 0;
  // Takes a new token; returns false if no more are wanted.
  virtual bool on_token(const GeneratedToken& token) = 0;
  virtual void end(Generation generation) = 0;
  // The model failed to compute the sequence.
  virtual void fail(const std::string& message) = 0;
};

class GenerationQueue {
 public:
  // At most `waiting` sequences wait. A step starts prompts of at most `prompt_tokens` tokens in total, or a single
  // longer one. `make` is called on the queue's thread, and again after a failed step, once the previous engine is
  // destroyed.
  GenerationQueue(MakeEngine make, int64_t waiting, int64_t prompt_tokens);
  ~GenerationQueue() { stop(); }
  GenerationQueue(const GenerationQueue&) = delete;
  GenerationQueue& operator=(const GenerationQueue&) = delete;

  // Queues all sequences, or returns false and queues none if there is no room for all. A request may exceed the limit
  // if nothing else waits. Returns false after stop().
  bool submit(const std::vector<std::shared_ptr<QueuedSequence>>& sequences);
  // The number of waiting sequences.
  int64_t waiting() const;
  // Drops waiting sequences, ends running ones after the current step, and waits for that. Does not notify recipients.
  void stop();

 private:
  using Sequence = std::shared_ptr<QueuedSequence>;

  void work();
  bool wait_for_work();  // false: the queue is stopping
  Sequence next(int64_t prompt_tokens_left, bool any_length);
  void admit();
  void compute();
  void fail_all(const std::string& message);

  const MakeEngine make_;
  const size_t most_waiting_;
  const int64_t prompt_tokens_;
  std::unique_ptr<BatchEngine> engine_;  // used by the queue's thread only, like running_
  std::map<size_t, Sequence> running_;   // by the engine's numbers
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Sequence> waiting_ WITAN_GUARDED_BY(mutex_);
  bool stopping_ WITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace witan::serve
