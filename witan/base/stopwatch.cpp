#include "witan/base/stopwatch.h"

namespace witan {
namespace {

const Stopwatch since_loaded;

}  // namespace

double process_seconds() {
  return since_loaded.seconds();
}

}  // namespace witan
