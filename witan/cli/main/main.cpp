// The witan program.
#include "witan/cli/run.h"

int main(int argc, char** argv) {
  witan::cli::Context context;
  if (argc > 0) context.program = argv[0];
  return witan::cli::run(argc, argv, context);
}
