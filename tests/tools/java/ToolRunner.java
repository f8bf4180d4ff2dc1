import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, because starting one for each costs a second.
 *
 * A line of JSON in ({"class", "args", "stdin", "timeout_ms"}), a line of JSON out ({"code", "stdout", "stderr"}). A tool
 * that calls Exit is held where it stands, as nothing may run after it; one that returns from main has exited with 0.
 * "code" is null when the time was over.
 */
public class ToolRunner {
    private static final PrintStream ANSWERS = System.out;
    private static final ObjectMapper JSON = new ObjectMapper();

    /** One run; what it prints and how it ends. */
    private static final class Run {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final CountDownLatch ended = new CountDownLatch(1);
        volatile Integer code;

        synchronized void end(int exitCode) {
            if (code == null) {
                code = exitCode;
                ended.countDown();
            }
        }
    }

    private static final AtomicReference<Run> CURRENT = new AtomicReference<>(new Run());

    /** Forwards to the stream of the run in progress: classes keep the System.out that they found. */
    private static final class Switch extends java.io.OutputStream {
        private final boolean isError;

        Switch(boolean isError) {
            this.isError = isError;
        }

        private ByteArrayOutputStream target() {
            Run run = CURRENT.get();
            return isError ? run.err : run.out;
        }

        @Override
        public void write(int b) {
            target().write(b);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            target().write(bytes, offset, length);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new PrintStream(new Switch(false), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Switch(true), true, StandardCharsets.UTF_8));
        Exit.Procedure hold = (code, message) -> {
            System.out.flush();
            CURRENT.get().end(code);
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        };
        Exit.setExitProcedure(hold);
        Exit.setHaltProcedure(hold);
        Exit.setShutdownHookAdder((name, hook) -> { });
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ANSWERS.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            ANSWERS.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode run(JsonNode command) throws Exception {
        Run run = new Run();
        CURRENT.set(run);
        InputStream input = System.in;
        System.setIn(new ByteArrayInputStream(command.path("stdin").asText("").getBytes(StandardCharsets.UTF_8)));
        String[] args = JSON.convertValue(command.get("args"), String[].class);
        String className = command.get("class").asText();
        Thread thread = new Thread(() -> call(run, className, args), "tool");
        thread.setDaemon(true);
        thread.start();
        run.ended.await(command.path("timeout_ms").asLong(30000), TimeUnit.MILLISECONDS);
        System.setIn(input);
        ObjectNode answer = JSON.createObjectNode();
        answer.put("code", run.code);
        answer.put("stdout", run.out.toString(StandardCharsets.UTF_8));
        answer.put("stderr", run.err.toString(StandardCharsets.UTF_8));
        return answer;
    }

    private static void call(Run run, String className, String[] args) {
        try {
            Class.forName(className).getMethod("main", String[].class).invoke(null, (Object) args);
            run.end(0);
        } catch (InvocationTargetException e) {
            e.getCause().printStackTrace();
            run.end(1);
        } catch (ReflectiveOperationException e) {
            e.printStackTrace();
            run.end(-1);
        }
    }
}
