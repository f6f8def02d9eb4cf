#include "witan/planner/speeds/ceilings_file.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan {
namespace {

Json to_json(const RateTable& table) {
  return {{"axes", table.axes}, {"values", table.values}};
}

Json to_json(const GpuSpeeds& speeds) {
  Json kernels = Json::object(), exchanges = Json::object();
  for (const auto& [name, speed] : speeds.kernels) kernels[name] = {speed.call, speed.flops, speed.bytes};
  for (const auto& [name, speed] : speeds.exchanges) exchanges[name] = {speed.call, speed.rank, speed.bytes};
  return {{"kernels", kernels},
          {"exchanges", exchanges},
          {"products", to_json(speeds.products)},
          {"grouped", to_json(speeds.grouped)},
          {"attention_forward", to_json(speeds.attention_forward)},
          {"attention_backward", to_json(speeds.attention_backward)},
          {"multiprocessors", speeds.multiprocessors},
          {"product_flops", speeds.product_flops},
          {"beside", speeds.beside}};
}

Json to_json(const CpuSpeeds& speeds) {
  Json kernels = Json::object();
  for (const auto& [name, speed] : speeds.kernels) kernels[name] = {speed.call, speed.flop, speed.moved};
  return {{"kernels", kernels}, {"exchange_call", speeds.exchange_call}, {"between_call", speeds.between_call}};
}

Json to_json(const Ceilings& c) {
  Json kernels = Json::object();
  for (const auto& [name, cost] : c.kernels) kernels[name] = {cost.flops, cost.bytes, cost.seconds};
  Json json = {{"dtype", c.load.dtype},    {"ranks", c.load.ranks},      {"threads", c.load.threads},
               {"gpu", c.load.gpu},        {"kernels", kernels},         {"exchange", c.exchange},
               {"fma_flops", c.fma_flops}, {"copy_bytes", c.copy_bytes}, {"between", c.between},
               {"busy", c.busy},           {"f32_flops", c.f32_flops},   {"calls", to_json(c.calls)}};
  if (c.speeds) json["speeds"] = to_json(*c.speeds);
  return json;
}

RateTable table_from_json(const Json& json) {
  return {json.at("axes").get<std::vector<std::vector<double>>>(), json.at("values").get<std::vector<double>>()};
}

GpuSpeeds speeds_from_json(const Json& json) {
  GpuSpeeds speeds;
  for (const auto& [name, of] : json.at("kernels").items())
    speeds.kernels[name] = {of.at(0).get<double>(), of.at(1).get<double>(), of.at(2).get<double>()};
  for (const auto& [name, of] : json.at("exchanges").items())
    speeds.exchanges[name] = {of.at(0).get<double>(), of.at(1).get<double>(), of.at(2).get<double>()};
  speeds.products = table_from_json(json.at("products"));
  speeds.grouped = table_from_json(json.at("grouped"));
  speeds.attention_forward = table_from_json(json.at("attention_forward"));
  speeds.attention_backward = table_from_json(json.at("attention_backward"));
  speeds.multiprocessors = json.at("multiprocessors").get<double>();
  speeds.product_flops = json.at("product_flops").get<double>();
  speeds.beside = json.at("beside").get<double>();
  require<DataError>(speeds.valid(), "speeds of a GPU that none has");
  return speeds;
}

CpuSpeeds calls_from_json(const Json& json) {
  CpuSpeeds speeds;
  for (const auto& [name, of] : json.at("kernels").items())
    speeds.kernels[name] = {of.at(0).get<double>(), of.at(1).get<double>(), of.at(2).get<double>()};
  speeds.exchange_call = json.at("exchange_call").get<double>();
  speeds.between_call = json.at("between_call").get<double>();
  require<DataError>(speeds.valid(), "speeds of a CPU that none has");
  return speeds;
}

// Throws nlohmann's exceptions for malformed entries, and DataError for impossible speeds.
Ceilings from_json(const Json& json) {
  Ceilings c;
  c.load = {json.at("dtype").get<std::string>(), json.at("ranks").get<int>(), json.at("threads").get<int>(),
            json.value("gpu", "")};
  for (const auto& [name, cost] : json.at("kernels").items())
    c.kernels[name] = {cost.at(0).get<double>(), cost.at(1).get<double>(), cost.at(2).get<double>()};
  c.exchange = json.at("exchange").get<std::map<std::string, double>>();
  c.fma_flops = json.at("fma_flops").get<double>();
  c.copy_bytes = json.at("copy_bytes").get<double>();
  c.between = json.at("between").get<double>();
  c.busy = json.value("busy", false);
  c.f32_flops = json.value("f32_flops", 0.0);
  if (json.contains("calls")) c.calls = calls_from_json(json.at("calls"));
  if (json.contains("speeds")) c.speeds = speeds_from_json(json.at("speeds"));
  return c;
}

// All entries for this machine; empty if the file is absent, damaged or another machine's.
std::vector<Ceilings> read(const fs::path& path, const std::string& machine) {
  constexpr uint64_t kMost = 1 << 20;
  try {
    if (path.empty() || !fs::exists(path)) return {};
    const Json json = parse_json(read_file(path, kMost), path.string(), 8);
    std::vector<Ceilings> all;
    if (json.at("machine") != machine) return {};
    for (const Json& one : json.at("ceilings")) all.push_back(from_json(one));
    return all;
  } catch (const Error&) {
    return {};
  } catch (const Json::exception&) {
    return {};
  }
}

}  // namespace

fs::path ceilings_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && fs::path(cache).is_absolute()) return fs::path(cache) / "witan" / "ceilings.json";
  const char* home = std::getenv("HOME");
  return home && *home ? fs::path(home) / ".cache" / "witan" / "ceilings.json" : fs::path();
}

std::optional<Ceilings> CeilingsFile::find(const Load& load) const {
  for (Ceilings& one : read(path_, machine_))
    if (one.load == load) return std::move(one);
  return std::nullopt;
}

void CeilingsFile::keep(const Ceilings& ceilings) const {
  if (path_.empty()) return;
  Json list = Json::array();
  for (const Ceilings& one : read(path_, machine_))
    if (!(one.load == ceilings.load)) list.push_back(to_json(one));
  list.push_back(to_json(ceilings));
  try {
    fs::create_directories(path_.parent_path());
    write_file_atomically(path_, Json{{"machine", machine_}, {"ceilings", list}}.dump(1));
  } catch (const Error&) {  // this is only a cache: the next call measures again
  } catch (const fs::filesystem_error&) {
  }
}

Ceilings CeilingsFile::get(const Load& load) const {
  if (auto kept = find(load); kept && (!kept->busy || probe_.busy(load))) return *std::move(kept);
  return renew(load);
}

Ceilings CeilingsFile::renew(const Load& load) const {
  Ceilings measured = probe_.measure(load);
  if (const auto kept = find(load); kept && (kept->busy || measured.busy)) {
    measured = fastest_of(*kept, std::move(measured));
    measured.busy = measured.busy && kept->busy;
  }
  keep(measured);
  return measured;
}

void CeilingsFile::raise(const Load& load, double flops) const {
  auto kept = find(load);
  if (!kept || flops <= kept->fma_flops) return;
  kept->fma_flops = flops;
  kept->busy = true;
  keep(*kept);
}

}  // namespace witan
