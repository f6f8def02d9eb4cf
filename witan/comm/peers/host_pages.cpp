#include "witan/comm/peers/host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>

#include "witan/base/error.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/comm/texts.h"

namespace witan {
namespace {

constexpr int64_t kPageBytes = 4096;

using Number = std::atomic<int64_t>;
static_assert(Number::is_always_lock_free, "words that processes share cannot be guarded by a lock of one of them");

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
  const int fd = ::memfd_create("witan pages", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, bytes) == 0) return fd;
  ::close(fd);
  return -1;
}

// Memory that has no name is opened by its process's number for it.
int open_of(int64_t process, int64_t fd) {
  return ::open(cat("/proc/", process, "/fd/", fd).c_str(), O_RDWR | O_CLOEXEC);
}

std::byte* map(int fd, int64_t bytes) {
  void* memory =
      fd < 0 ? MAP_FAILED : ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

std::unique_ptr<HostPages> HostPages::make(HostGroup& group, int64_t bytes) {
  const HostIdentity own = identity_of_process();
  const std::vector<int64_t> identities = gather_words(group, {own.host, own.process});
  const auto at = [](const std::vector<int64_t>& all, int rank, size_t field, size_t fields) {
    return all[static_cast<size_t>(rank) * fields + field];
  };
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank)
    if (at(identities, rank, 0, 2) == own.host) ranks.push_back(rank);
  const int first = ranks.front();

  const int64_t mapped = kPageBytes + bytes, number = random_number();
  const File created(group.rank() == first ? create(mapped) : -1);
  std::byte* memory = map(created.fd(), mapped);
  if (memory != nullptr) (new (memory) Number)->store(number);
  const std::vector<int64_t> shared = gather_words(group, {::getpid(), created.fd(), number});
  if (group.rank() != first && at(shared, first, 1, 3) >= 0) {
    if (at(identities, first, 1, 2) == own.process) {
      memory = map(static_cast<int>(at(shared, first, 1, 3)), mapped);
    } else {
      const File opened(open_of(at(shared, first, 0, 3), at(shared, first, 1, 3)));
      memory = map(opened.fd(), mapped);
    }
  }
  std::unique_ptr<HostPages> pages;
  if (memory != nullptr) pages.reset(new HostPages(memory, bytes, ranks));
  const bool mine = memory != nullptr && reinterpret_cast<Number*>(memory)->load() == at(shared, first, 2, 3);
  const std::vector<int64_t> answers = gather_words(group, {mine});  // the first rank keeps its file open until then
  if (!std::ranges::all_of(ranks, [&](int rank) { return answers[static_cast<size_t>(rank)] != 0; })) return nullptr;
  return pages;
}

HostPages::~HostPages() {
  ::munmap(mapped_, static_cast<size_t>(kPageBytes + bytes_));
}

std::byte* HostPages::base() const {
  return mapped_ + kPageBytes;
}

}  // namespace witan
