// Work that is asked for from several sides.

/** Does some work when called, never twice at a time: whatever asks for it meanwhile has it done once more. */
export function oneAtATime(work: () => Promise<void>): () => void {
  let isWorking = false;
  let isWanted = false;
  const run = async () => {
    isWorking = true;
    try {
      while (isWanted) {
        isWanted = false;
        await work();
      }
    } finally {
      isWorking = false;
    }
  };
  return () => {
    isWanted = true;
    if (!isWorking) void run();
  };
}
