// Sequences that wait for the model, and the thread that runs it: they join the batch that is computed as soon as there
// is room, and leave it as they end.
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

// What computes sequences together; of witan/generate/generation_batch.h, whose methods these are.
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

// One sequence to generate, and who wants it. Its methods are called on the queue's thread, end() or fail() last.
class QueuedSequence {
 public:
  virtual ~QueuedSequence() = default;
  virtual const GenerationRequest& request() const = 0;
  // Asked before it is computed: one that nobody wants any more is dropped without a word.
  virtual bool wanted() const = 0;
  // A new token; false: no more are wanted.
  virtual bool on_token(const GeneratedToken& token) = 0;
  virtual void end(Generation generation) = 0;
  // The model could not compute it.
  virtual void fail(const std::string& message) = 0;
};

class GenerationQueue {
 public:
  // At most `waiting` sequences wait. In one step prompts of at most `prompt_tokens` together are begun, or one longer
  // one. `make` is called on the queue's thread, again after a step that failed, when the engine before is gone.
  GenerationQueue(MakeEngine make, int64_t waiting, int64_t prompt_tokens);
  ~GenerationQueue() { stop(); }
  GenerationQueue(const GenerationQueue&) = delete;
  GenerationQueue& operator=(const GenerationQueue&) = delete;

  // All of them or, where there is no room for all, none: false. A request may have more sequences than may wait if
  // nothing else does. Nothing is taken any more after stop().
  bool submit(const std::vector<std::shared_ptr<QueuedSequence>>& sequences);
  // Sequences that wait to be computed.
  int64_t waiting() const;
  // Drops what waits, ends what is computed with this step, and waits for that. Nobody is told.
  void stop();

 private:
  using Sequence = std::shared_ptr<QueuedSequence>;

  void work();
  bool wait_for_work();  // false: the end
  Sequence next(int64_t prompt_tokens_left, bool any_length);
  void admit();
  void compute();
  void fail_all(const std::string& message);

  const MakeEngine make_;
  const size_t most_waiting_;
  const int64_t prompt_tokens_;
  std::unique_ptr<BatchEngine> engine_;  // of the queue's thread, as is the next
  std::map<size_t, Sequence> running_;   // by the engine's numbers
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Sequence> waiting_ WITAN_GUARDED_BY(mutex_);
  bool stopping_ WITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace witan::serve
