#include "witan/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>

#include "witan/base/error.h"

namespace witan {

Log::Log(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    logger_ = std::make_shared<spdlog::logger>("witan", std::move(sink));
    logger_->set_formatter(
        std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc));
    logger_->flush_on(spdlog::level::info);
  } catch (const spdlog::spdlog_ex& e) {
    throw IoError(cat("cannot open the log ", path, ": ", e.what()));
  }
}

void Log::info(std::string_view line) const {
  if (logger_) logger_->info("{}", line);
}
void Log::warn(std::string_view line) const {
  if (logger_) logger_->warn("{}", line);
}
void Log::error(std::string_view line) const {
  if (logger_) logger_->error("{}", line);
}

}  // namespace witan
