#include "witan/comm/peers/host_words.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "witan/base/error.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/comm/texts.h"

namespace witan {

struct HostWords::Page {
  std::atomic<int64_t> number;
};

namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "words that processes share cannot be guarded by a lock of one of them");

// A file that is closed with this.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

int create(int64_t bytes) {
  const int fd = ::memfd_create("witan words", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, bytes) == 0) return fd;
  ::close(fd);
  return -1;
}

// Memory that has no name is opened by its process's number for it, so that a job that is killed leaves nothing behind.
int open_of(int64_t process, int64_t fd) {
  return ::open(cat("/proc/", process, "/fd/", fd).c_str(), O_RDWR | O_CLOEXEC);
}

void* map(int fd, int64_t bytes) {
  void* memory =
      fd < 0 ? MAP_FAILED : ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

std::unique_ptr<HostWords> HostWords::make(HostGroup& group) {
  const HostIdentity own = identity_of_process();
  const std::vector<int64_t> identities = gather_words(group, {own.host, own.process});
  const auto at = [](const std::vector<int64_t>& all, int rank, size_t field, size_t fields) {
    return all[static_cast<size_t>(rank) * fields + field];
  };
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank)
    if (at(identities, rank, 0, 2) == own.host) ranks.push_back(rank);
  const int first = ranks.front();

  const auto bytes = static_cast<int64_t>(sizeof(Page) + static_cast<size_t>(group.size()) * sizeof(uint32_t));
  const int64_t number = random_number();
  const File created(group.rank() == first ? create(bytes) : -1);
  void* memory = map(created.fd(), bytes);
  if (memory != nullptr) (new (memory) Page)->number.store(number);
  const std::vector<int64_t> shared = gather_words(group, {::getpid(), created.fd(), number});
  if (group.rank() != first && at(shared, first, 1, 3) >= 0) {
    if (at(identities, first, 1, 2) == own.process) {
      memory = map(static_cast<int>(at(shared, first, 1, 3)), bytes);
    } else {
      const File opened(open_of(at(shared, first, 0, 3), at(shared, first, 1, 3)));
      memory = map(opened.fd(), bytes);
    }
  }
  std::unique_ptr<HostWords> words;
  if (memory != nullptr) words.reset(new HostWords(static_cast<Page*>(memory), bytes, group.rank(), ranks));
  const bool mine = words != nullptr && words->page_->number.load() == at(shared, first, 2, 3);
  const std::vector<int64_t> answers = gather_words(group, {mine});  // the first rank keeps its file open until then
  if (!std::ranges::all_of(ranks, [&](int rank) { return answers[static_cast<size_t>(rank)] != 0; })) return nullptr;
  return words;
}

HostWords::~HostWords() {
  ::munmap(page_, static_cast<size_t>(bytes_));
}

std::atomic<uint32_t>& HostWords::word(int rank) const {
  return reinterpret_cast<std::atomic<uint32_t>*>(page_ + 1)[rank];
}

void HostWords::set() noexcept {
  word(rank_).store(1);
}

bool HostWords::await_all(double seconds) const noexcept {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const auto all = [&] { return std::ranges::all_of(ranks_, [&](int rank) { return word(rank).load() != 0; }); };
  while (!all()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace witan
