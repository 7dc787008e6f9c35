# Runs PYTHON with the list COMMAND and writes what it prints to OUTPUT, whole or not at all.
get_filename_component(folder ${OUTPUT} DIRECTORY)
file(MAKE_DIRECTORY ${folder})
execute_process(COMMAND ${PYTHON} -B ${COMMAND} OUTPUT_FILE ${OUTPUT}.new COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${OUTPUT}.new ${OUTPUT})
