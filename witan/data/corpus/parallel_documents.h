// Work on each document of a corpus by all threads, whose results are taken in the order of the documents: they cannot
// depend on the number of threads.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/data/corpus/corpus.h"

namespace witan {

template <class Result>
class ParallelDocuments {
 public:
  struct Waiting {
    std::string text;
    const Source* source = nullptr;
    int64_t row = 0;
  };

  // `compute` is called by all threads, `take` by that of add() and flush().
  ParallelDocuments(int threads, std::function<Result(std::string_view text)> compute,
                    std::function<void(const Waiting& document, Result result)> take)
      : pool_(std::max(threads, 1)), compute_(std::move(compute)), take_(std::move(take)) {}

  // Keeps the text until there is enough work for all threads.
  void add(const Document& document) {
    waiting_.push_back({std::string(document.text), document.origin.source, document.origin.row});
    bytes_ += document.text.size();
    if (bytes_ >= kBytes) flush();
  }

  // Call at the end.
  void flush() {
    std::vector<Result> results(waiting_.size());
    pool_.run(static_cast<int64_t>(waiting_.size()), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      results[at] = compute_(waiting_[at].text);
    });
    for (size_t i = 0; i < waiting_.size(); ++i) take_(waiting_[i], std::move(results[i]));
    waiting_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kBytes = 4 << 20;

  ThreadPool pool_;
  std::function<Result(std::string_view)> compute_;
  std::function<void(const Waiting&, Result)> take_;
  std::vector<Waiting> waiting_;
  size_t bytes_ = 0;
};

}  // namespace witan
