import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.HexFormat;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.*;

/** Reads each line of a golden file with Kafka's own client classes and checks that they write the same bytes. */
public class Verify {
    public static void main(String[] args) throws Exception {
        int good = 0, bad = 0;
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            if (line.isBlank() || line.startsWith("#")) continue;
            String[] words = line.split(" ", -1);
            short version = Short.parseShort(words[1]);
            byte[] bytes = HexFormat.of().parseHex(words[3]);
            String where = words[0] + " " + words[1] + " " + words[2];
            try {
                ApiMessageType type = null;
                for (ApiKeys key : ApiKeys.values()) if (key.name.equals(words[0])) type = key.messageType;
                ApiMessage message = words[2].equals("request") ? type.newRequest() : type.newResponse();
                ByteBuffer in = ByteBuffer.wrap(bytes);
                message.read(new ByteBufferAccessor(in), version);
                if (in.hasRemaining()) throw new IllegalStateException(in.remaining() + " bytes unread");
                ByteBuffer out = MessageUtil.toByteBufferAccessor(message, version).buffer();
                byte[] back = new byte[out.remaining()];
                out.get(back);
                if (!java.util.Arrays.equals(back, bytes)) throw new IllegalStateException("other bytes: " + HexFormat.of().formatHex(back) + " from " + words[3] + " " + message);
                good++;
            } catch (Exception e) {
                bad++;
                System.out.println(where + ": " + e);
            }
        }
        System.out.println(good + " good, " + bad + " bad");
        System.exit(bad == 0 ? 0 : 1);
    }
}
