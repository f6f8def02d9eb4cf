# Read by ctest behind the lists of the programs' tests: what else than a core some of them need.
# Those of processes that lose each other wait for deadlines, and compute a tenth of their time. Of four processors to a
# core they take one, and scripts/test.sh tells of two beside those of all cores: they run beside tests that compute. By
# their cost they come after those, whose places they would take. The longest ones of all come first, not last and alone.
foreach(test IN LISTS test_comm_TESTS comm_by_sockets comm_by_ucx_tcp test_cli_TESTS)
  if(test MATCHES "^(comm[^/]*/(Ranks/Process|Process|ThreadsOfProcesses)|cli/(RunCommandTest|RankProcesses|GdbTest)[.])")
    set_tests_properties("${test}" PROPERTIES PROCESSORS 1 COST -1)
  endif()
endforeach()
foreach(test IN LISTS test_reliability_TESTS test_planner_TESTS)
  if(test MATCHES "^(reliability/|planner/RandomPlans[.])")
    set_tests_properties("${test}" PROPERTIES COST 1)
  endif()
endforeach()
