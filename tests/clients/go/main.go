// The test client on franz-go: `semel-test-go BOOTSTRAP` creates a topic, produces idempotently with every codec,
// consumes by assignment, looks offsets up by time and deletes. It exits 0 only when everything was as expected.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const limit = 60 * time.Second

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: semel-test-go BOOTSTRAP")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*limit)
	defer cancel()
	if err := tour(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
}

// written is one record that must come back as it went.
type written struct {
	key, value []byte
	at         time.Time
	header     string
}

func tour(ctx context.Context, bootstrap string) error {
	topic := fmt.Sprintf("go-tour-%d", os.Getpid())
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if created, err := admin.CreateTopic(ctx, 2, 1, nil, topic); err != nil || created.Err != nil {
		return fmt.Errorf("create: %w %w", err, created.Err)
	}
	if again, _ := admin.CreateTopic(ctx, 2, 1, nil, topic); again.Err == nil {
		return fmt.Errorf("a topic was created twice")
	}
	expected, err := produce(ctx, bootstrap, topic)
	if err != nil {
		return err
	}
	if err := consume(ctx, bootstrap, topic, expected); err != nil {
		return err
	}
	if err := lookUp(ctx, admin, topic, expected); err != nil {
		return err
	}
	return remove(ctx, admin, topic)
}

func produce(ctx context.Context, bootstrap, topic string) ([2][]written, error) {
	var expected [2][]written
	codecs := []struct {
		name  string
		codec kgo.CompressionCodec
	}{
		{"none", kgo.NoCompression()}, {"gzip", kgo.GzipCompression()}, {"snappy", kgo.SnappyCompression()},
		{"lz4", kgo.Lz4Compression()}, {"zstd", kgo.ZstdCompression()},
	}
	moment := time.UnixMilli(1_750_000_000_000)
	for _, c := range codecs {
		// Idempotent with acks=all unless told otherwise.
		producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ProducerBatchCompression(c.codec),
			kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20*time.Millisecond))
		if err != nil {
			return expected, err
		}
		var records []*kgo.Record
		for i := range 20 {
			w := written{key: fmt.Appendf(nil, "%s-%d", c.name, i), at: moment}
			switch i % 4 {
			case 0:
				w.key, w.value = nil, []byte{}
			case 1:
				w.value = nil
			case 2:
				w.value = bytes.Repeat([]byte{0, 255, byte(i)}, 700)
			default:
				w.value, w.header = fmt.Appendf(nil, "%s value %d", c.name, i), c.name
			}
			moment = moment.Add(time.Minute)
			record := &kgo.Record{Topic: topic, Partition: int32(i % 2), Key: w.key, Value: w.value, Timestamp: w.at}
			if w.header != "" {
				record.Headers = []kgo.RecordHeader{{Key: "codec", Value: []byte(w.header)}}
			}
			records = append(records, record)
			expected[i%2] = append(expected[i%2], w)
		}
		err = producer.ProduceSync(ctx, records...).FirstErr()
		producer.Close()
		if err != nil {
			return expected, fmt.Errorf("produce with %s: %w", c.name, err)
		}
	}
	return expected, nil
}

func consume(ctx context.Context, bootstrap, topic string, expected [2][]written) error {
	start := kgo.NewOffset().AtStart()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{topic: {0: start, 1: start}}))
	if err != nil {
		return err
	}
	defer client.Close()
	var got [2]int
	for got[0] < len(expected[0]) || got[1] < len(expected[1]) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("consume after %v: %w", got, err)
		}
		for _, r := range fetches.Records() {
			at := got[r.Partition]
			if at >= len(expected[r.Partition]) {
				return fmt.Errorf("partition %d has too many records", r.Partition)
			}
			w := expected[r.Partition][at]
			same := r.Offset == int64(at) && same(r.Key, w.key) && same(r.Value, w.value) && r.Timestamp.Equal(w.at)
			if w.header != "" {
				same = same && len(r.Headers) == 1 && string(r.Headers[0].Value) == w.header
			}
			if !same {
				return fmt.Errorf("partition %d offset %d (expected %d): %+v is not %+v", r.Partition, r.Offset, at, r, w)
			}
			got[r.Partition]++
		}
	}
	return nil
}

// same tells null from empty, unlike bytes.Equal.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func lookUp(ctx context.Context, admin *kadm.Client, topic string, expected [2][]written) error {
	for index := range expected[0] {
		for partition := range int32(2) {
			at := expected[partition][index].at.UnixMilli()
			listed, err := admin.ListOffsetsAfterMilli(ctx, at, topic)
			if err != nil {
				return err
			}
			found, ok := listed.Lookup(topic, partition)
			if !ok || found.Err != nil || found.Offset != int64(index) || found.Timestamp != at {
				return fmt.Errorf("partition %d at %d: %+v and not %d", partition, at, found, index)
			}
		}
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	if end, _ := ends.Lookup(topic, 1); end.Offset != int64(len(expected[1])) {
		return fmt.Errorf("end %+v and not %d", end, len(expected[1]))
	}
	return nil
}

func remove(ctx context.Context, admin *kadm.Client, topic string) error {
	var upTo kadm.Offsets
	upTo.Add(kadm.Offset{Topic: topic, Partition: 1, At: 30, LeaderEpoch: -1})
	cut, err := admin.DeleteRecords(ctx, upTo)
	if err != nil {
		return err
	}
	if low, _ := cut.Lookup(topic, 1); low.Err != nil || low.LowWatermark != 30 {
		return fmt.Errorf("delete records: %+v", low)
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	if start, _ := starts.Lookup(topic, 1); start.Offset != 30 {
		return fmt.Errorf("start %+v and not 30", start)
	}
	deleted, err := admin.DeleteTopic(ctx, topic)
	if err != nil || deleted.Err != nil {
		return fmt.Errorf("delete: %w %w", err, deleted.Err)
	}
	for {
		listed, err := admin.ListTopics(ctx)
		if err != nil {
			return err
		}
		if !listed.Has(topic) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the deleted topic is still listed")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
