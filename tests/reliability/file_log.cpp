#include "reliability/file_log.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "witan/base/json.h"

namespace witan::test {

OperationLog& OperationLog::get() {
  static OperationLog log;
  return log;
}

void OperationLog::keep(Operation operation, int64_t result) {
  const auto below = [&](std::string& path) {
    while (path.ends_with('/')) path.pop_back();
    if (!(path + '/').starts_with(root_)) return false;
    path.erase(0, std::min(path.size(), root_.size()));
    return true;
  };
  if (operation.path.ends_with(" (deleted)") || !below(operation.path)) return;
  if (!operation.to.empty() && !below(operation.to)) return;
  if (operation.kind == Operation::Kind::write) operation.bytes.resize(static_cast<size_t>(result));
  operations_.push_back(std::move(operation));
}

void log_operations(const fs::path& folder) {
  OperationLog& log = OperationLog::get();
  const std::lock_guard lock(log.mutex_);
  log.root_ = folder.string() + "/";
  log.operations_.clear();
  log.on_ = true;
}

void write_operations(const fs::path& path) {
  OperationLog& log = OperationLog::get();
  const std::lock_guard lock(log.mutex_);
  log.on_ = false;
  Json all = Json::array();
  for (const Operation& one : log.operations_)
    all.push_back(
        {static_cast<int>(one.kind), one.path, one.to, one.offset, Json::binary({one.bytes.begin(), one.bytes.end()})});
  const std::vector<uint8_t> packed = Json::to_cbor(all);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(packed.data()), std::ssize(packed));
}

std::vector<Operation> read_operations(const fs::path& path) {
  std::vector<Operation> operations;
  for (const Json& one : Json::from_cbor(read_file(path))) {
    const auto& bytes = one[4].get_binary();
    operations.push_back({static_cast<Operation::Kind>(one[0].get<int>()), one[1], one[2], one[3],
                          std::string(bytes.begin(), bytes.end())});
  }
  return operations;
}

}  // namespace witan::test
