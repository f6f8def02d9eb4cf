#include "witan/serve/generation_queue.h"

#include <exception>

namespace witan::serve {

GenerationQueue::GenerationQueue(MakeEngine make, int64_t waiting, int64_t prompt_tokens)
    : make_(std::move(make)),
      most_waiting_(static_cast<size_t>(waiting)),
      prompt_tokens_(prompt_tokens),
      thread_([this] { work(); }) {}

bool GenerationQueue::submit(const std::vector<Sequence>& sequences) {
  const MutexLock lock(mutex_);
  if (stopping_) return false;
  if (!waiting_.empty() && waiting_.size() + sequences.size() > most_waiting_) return false;
  waiting_.insert(waiting_.end(), sequences.begin(), sequences.end());
  changed_.notify_all();
  return true;
}

int64_t GenerationQueue::waiting() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}

void GenerationQueue::stop() {
  std::deque<Sequence> dropped;  // destroyed after the lock is released, since their destructors may do anything
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool GenerationQueue::wait_for_work() {
  MutexLock lock(mutex_);
  while (waiting_.empty() && running_.empty() && !stopping_) changed_.wait(lock);
  return !stopping_;
}

void GenerationQueue::work() {
  while (wait_for_work()) {
    try {
      if (!engine_) engine_ = make_();
      admit();
      compute();
    } catch (const std::exception& error) {
      engine_.reset();  // its state is useless, and the next engine needs its memory
      fail_all(error.what());
    }
  }
  running_.clear();
  engine_.reset();
}

// The first waiting sequence, if its prompt is short enough; else nullptr.
GenerationQueue::Sequence GenerationQueue::next(int64_t prompt_tokens_left, bool any_length) {
  const MutexLock lock(mutex_);
  if (waiting_.empty()) return nullptr;
  const auto length = static_cast<int64_t>(waiting_.front()->request().prompt.size());
  if (length > prompt_tokens_left && !any_length) return nullptr;
  Sequence sequence = std::move(waiting_.front());
  waiting_.pop_front();
  return sequence;
}

void GenerationQueue::admit() {
  int64_t left = prompt_tokens_;
  while (engine_->has_room()) {
    const Sequence sequence = next(left, left == prompt_tokens_);
    if (!sequence) return;
    if (!sequence->wanted()) continue;
    try {
      running_.emplace(engine_->admit(sequence->request()), sequence);
    } catch (const std::exception& error) {  // only this sequence cannot be computed
      sequence->fail(error.what());
      continue;
    }
    left -= static_cast<int64_t>(sequence->request().prompt.size());
  }
}

void GenerationQueue::compute() {
  if (!engine_->idle())
    engine_->step([this](size_t number, const GeneratedToken& token) {
      const Sequence& sequence = running_.at(number);
      return sequence->wanted() && sequence->on_token(token);
    });
  for (auto& [number, generation] : engine_->take_finished()) {
    const auto at = running_.find(number);
    at->second->end(std::move(generation));
    running_.erase(at);
  }
}

void GenerationQueue::fail_all(const std::string& message) {
  for (const auto& [number, sequence] : running_) sequence->fail(message);
  running_.clear();
}

}  // namespace witan::serve
