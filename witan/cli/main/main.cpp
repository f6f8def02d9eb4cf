// The witan program.
#include "witan/cli/run.h"

int main(int argc, char** argv) {
  witan::cli::Context context;
  return witan::cli::run(argc, argv, context);
}
