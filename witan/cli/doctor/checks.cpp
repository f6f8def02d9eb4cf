#include "witan/cli/doctor/checks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/comm/threads/threads.h"

namespace witan::cli {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A file without a name, or whose name is removed at once, so that no file is left however the process ends.
class ScratchFile {
 public:
  explicit ScratchFile(const fs::path& folder) : folder_(folder) {
    std::string name = (folder / ".witan-disk-XXXXXX").string();
    fd_ = ::mkstemp(name.data());
    if (fd_ < 0) fail("create a file");
    ::unlink(name.c_str());
  }
  ~ScratchFile() { ::close(fd_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  void write(const std::vector<char>& bytes) {
    if (::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) fail("write");
  }
  void sync() {
    if (::fsync(fd_) != 0) fail("flush");
  }

 private:
  [[noreturn]] void fail(const char* action) const {
    const std::string message = cat("cannot ", action, " in ", folder_.string(), ": ", std::strerror(errno));
    if (errno == ENOSPC || errno == EDQUOT) throw DiskFullError(message);
    throw IoError(message);
  }

  fs::path folder_;
  int fd_ = -1;
};

template <class T>
Tensor upload(Stream& stream, const std::vector<T>& values) {
  const Tensor tensor = stream.empty({static_cast<int64_t>(values.size())}, dtype_of<T>());
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

// Exchanges rows and returns those that this rank receives. `splits`: the number of rows for each rank.
std::vector<int32_t> exchange(Group& group, const std::vector<int32_t>& rows, const std::vector<int64_t>& splits) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(1 << 20), pool);
  const Tensor in = upload(stream, rows);             // [I] grouped by destination
  const Tensor send_counts = upload(stream, splits);  // [2]
  const Tensor recv_counts = stream.empty_like(send_counts);
  group.all_to_all_equal(stream, recv_counts, send_counts);
  const auto counts = recv_counts.to_vector<int64_t>();
  const Tensor out = stream.empty({counts[0] + counts[1]}, DType::i32);  // [O] grouped by source
  group.all_to_all(stream, out, recv_counts, in, send_counts);
  return out.to_vector<int32_t>();
}

const std::vector<std::pair<std::string, std::vector<std::string>>> kSets = {
    {"the default text", {"perl-doc"}},
    {"make test", {"libgtest-dev", "libgmock-dev"}},
    {"make bench", {"libbenchmark-dev"}},
    {"make lint", {"clang-format", "clang-tidy", "shellcheck"}},
};

}  // namespace

DiskSpeed measure_disk(const fs::path& folder) {
  constexpr size_t kPiece = 1 << 20, kPieces = 64;
  DiskSpeed speed;
  speed.free = free_disk_bytes(folder);
  ScratchFile file(folder);
  std::array<double, 5> times{};
  const std::vector<char> page(4096, 'w');
  for (double& time : times) {
    const auto start = Clock::now();
    file.write(page);
    file.sync();
    time = seconds_since(start);
  }
  std::sort(times.begin(), times.end());
  speed.fsync_s = times[times.size() / 2];

  const size_t pieces = std::clamp<size_t>(speed.free / 4 / kPiece, 1, kPieces);
  const std::vector<char> piece(kPiece, 'w');
  const auto start = Clock::now();
  for (size_t i = 0; i < pieces; ++i) file.write(piece);
  file.sync();
  speed.write_bytes_per_s = static_cast<double>(pieces * kPiece) / seconds_since(start);
  return speed;
}

bool ExchangeCheck::ok() const {
  return received[0] == std::vector<int32_t>{0, 1, 10, 11, 12} &&
         received[1] == std::vector<int32_t>{2, 3, 4, 13, 14, 15};
}

ExchangeCheck check_exchange() {
  ExchangeCheck check;
  check.sent = {std::vector<int32_t>{0, 1, 2, 3, 4}, std::vector<int32_t>{10, 11, 12, 13, 14, 15}};
  const std::array<std::vector<int64_t>, 2> splits = {std::vector<int64_t>{2, 3}, std::vector<int64_t>{3, 3}};
  ThreadWorld world(2, {.deadline_seconds = 10});
  world.run([&](int index) {
    const auto rank = static_cast<size_t>(index);
    const auto group = world.group(index, {0, 1}, "expert");
    check.received[rank] = exchange(*group, check.sent[rank], splits[rank]);
  });
  return check;
}

std::vector<PackageSet> read_packages(const fs::path& root) {
  const fs::path records = root / "var/lib/dpkg/info";
  if (!fs::is_directory(records)) return {};
  std::vector<std::string> installed;  // NAME.list, or NAME:ARCHITECTURE.list
  for (const auto& entry : fs::directory_iterator(records))
    if (entry.path().extension() == ".list") {
      const std::string name = entry.path().stem();
      installed.push_back(name.substr(0, name.find(':')));
    }
  std::vector<PackageSet> sets;
  for (const auto& [purpose, names] : kSets) {
    PackageSet& set = sets.emplace_back(PackageSet{purpose, {}});
    for (const std::string& name : names)
      if (std::find(installed.begin(), installed.end(), name) == installed.end()) set.missing.push_back(name);
  }
  return sets;
}

}  // namespace witan::cli
