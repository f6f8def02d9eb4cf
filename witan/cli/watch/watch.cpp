// witan watch: shows the report of runs in a browser while they train.
#include <fmt/core.h>

#include <memory>
#include <set>
#include <thread>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/watch/dashboard.h"
#include "witan/serve/access.h"
#include "witan/train/signals/signals.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

constexpr int kAnyPort = -1;

struct WatchArgs {
  std::vector<std::string> names;
  std::string runs_folder = "runs";
  int port = kAnyPort;
};

constexpr const char* kThisHost = "127.0.0.1";
constexpr int kFirstPort = 8030, kTries = 20;

// The runs that are named; without names, those that are training, or else the latest.
std::vector<fs::path> watched_folders(const WatchArgs& args) {
  std::vector<fs::path> folders;
  std::set<std::string> once;
  for (const std::string& name : args.names) {
    require<UsageError>(!name.empty(), "a run's name is empty");
    require<UsageError>(once.insert(name).second, "the run ", clipped(name), " is named twice");
    folders.push_back(find_run(args.runs_folder, name));
  }
  if (folders.empty())
    for (const std::string& name : list_runs(args.runs_folder))
      if (is_training(fs::path(args.runs_folder) / name)) folders.push_back(fs::path(args.runs_folder) / name);
  require<UsageError>(folders.size() <= kSeriesColours, "witan watch shows at most ", kSeriesColours,
                      " runs at a time, one for each colour, but there are ", folders.size(),
                      ": name the ones to show");
  if (folders.empty()) folders.push_back(find_run(args.runs_folder, ""));
  return folders;
}

// Starts the server at the given port, or at the first free one from kFirstPort on.
std::unique_ptr<serve::HttpServer> open_server(int port, WatchService& service) {
  const auto at = [&](int place) {
    return std::make_unique<serve::HttpServer>(
        kThisHost, place, serve::HttpLimits{.body_bytes = 1 << 10, .connections = 64},
        [&service](const serve::HttpRequest& request, const std::shared_ptr<serve::Reply>& reply) {
          reply->send(service.answer(request));
        },
        [](int status, const std::string& message) { return cat(status, ": ", message, "\n"); });
  };
  if (port != kAnyPort) return at(port);
  for (int next = kFirstPort; next < kFirstPort + kTries; ++next) {
    try {
      return at(next);
    } catch (const UsageError&) {  // the port is in use
    }
  }
  return at(0);
}

ExitCode watch(Context& context, const WatchArgs& args) {
  const std::vector<fs::path> folders = watched_folders(args);
  Dashboard dashboard(folders);
  const std::string secret = serve::new_secret();
  WatchService service(dashboard, secret);
  const auto server = open_server(args.port, service);
  const StopSignals signals(StopSignals::Answer::stop, StopSignals::Voice::silent);
  for (const fs::path& folder : folders) fmt::print(context.err, "run          {}\n", folder.string());
  fmt::print(context.err, "listening at http://{}:{}/?token={} (Ctrl-C stops)\n", kThisHost, server->port(), secret);
  std::fflush(context.err);
  while (!StopSignals::requested()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return ExitCode::done;
}

}  // namespace

void add_watch(CLI::App& app, Context& context) {
  const auto args = std::make_shared<WatchArgs>();
  CLI::App* command = add_command(
      app, context,
      {"watch", "Show runs in a browser while they train",
       "Serves the report's page, which updates itself; several runs are overlaid. It only reads "
       "the runs' files. Only this machine can reach the server, and only with the token in the address that is "
       "printed: to look from another machine, forward the port (ssh -L 8030:127.0.0.1:8030 HOST).",
       "witan watch\nwitan watch base tuned\nwitan watch my-run --port 9000"},
      [&context, args] { return watch(context, *args); });
  add_option(*command, "names", args->names, "Names of the runs, at most 8 (default: those that train, or the latest)")
      .type_name("");
  add_runs_folder(*command, args->runs_folder);
  add_option(*command, "--port", args->port, "Port to listen at (0: a free one; default: the first free from 8030)")
      .type_name("N")
      .range(0, 65535);
}

}  // namespace witan::cli
